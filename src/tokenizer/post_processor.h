// SPDX-License-Identifier: Apache-2.0
// The post-processor of a tokenizer.json: the ids that stand before and after a text.
#pragma once

#include <cstdint>
#include <vector>

#include "json_reader.h"

namespace vitrine::tokenizer {

/// ByteLevel (offsets only, nothing to do here), one TemplateProcessing, and sequences of them.
/// Immutable after loading.
class PostProcessor {
 public:
  /// From the field `post_processor` (null: nothing to do); ids must be below `vocab_size`.
  static PostProcessor load(const JsonNode& node, int32_t vocab_size);

  std::vector<int32_t> apply(std::vector<int32_t> ids, bool add_special_tokens) const;

 private:
  struct Piece {
    bool is_text = false;  // the text's own ids, otherwise `ids`
    std::vector<int32_t> ids;
  };
  void add(const JsonNode& node, int32_t vocab_size);

  std::vector<Piece> pieces_;
  bool has_template_ = false;
};

}  // namespace vitrine::tokenizer
