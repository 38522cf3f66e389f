// SPDX-License-Identifier: Apache-2.0
// What a stored prefix must have been made with so that an engine goes on from it with the same
// bits.
#pragma once

#include <string>
#include <vector>

#include "engine/prefix_image.h"
#include "serve/prefix_file.h"
#include "vitrine/audit.h"
#include "vitrine/engine.h"

namespace vitrine::serve {

/// The facts are taken when it is made; files are read later, on the store's thread.
class StoreFit {
 public:
  /// `keeps_words`: what the recorder said has to be there, too.
  StoreFit(Engine& engine, bool keeps_words);

  /// Returns the fields that a file of an adapter must have: model, adapter, build, codec, RoPE
  /// options, sizes, records. Hashes weights the first time. Throws kIo.
  StoreFields fields(int adapter);
  const engine::ImageSizes& sizes() const { return sizes_; }
  /// The layout of a token's words; none are kept where it has none.
  const AuditLayout& layout() const { return layout_; }
  int64_t token_words() const { return keeps_words_ ? layout_.token_words : 0; }

 private:
  std::string hash_adapter(int adapter) const;

  std::vector<std::string> weight_files_;
  std::string config_;
  StoreFields fields_;  // but for the model and the adapter
  engine::ImageSizes sizes_;
  AuditLayout layout_;
  bool keeps_words_;
  std::vector<std::string> adapters_;
  std::vector<std::pair<std::string, float>> lora_;
  std::string model_;  // once it is hashed
};

}  // namespace vitrine::serve
