// SPDX-License-Identifier: Apache-2.0
// The decoder of a tokenizer.json: tokens to text, at once or one by one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_reader.h"
#include "regex.h"

namespace vitrine::tokenizer {

/// ByteLevel, ByteFallback, Metaspace, Fuse, Replace, Strip and sequences of them. Immutable after
/// loading.
class Decoder {
 public:
  /// From the field `decoder` (null: tokens with a space between them, as tokenizers does).
  static Decoder load(const JsonNode& node);

  /// The text of a whole sequence of tokens.
  std::string decode(std::vector<std::string> tokens) const;

  /// Whether what a token adds depends on what came before only, so that text can be streamed.
  /// Otherwise (a Replace, or a Strip at the end, behind a Fuse) only the whole can be decoded.
  bool is_streamable() const { return is_streamable_; }

  /// What streaming remembers of the tokens so far.
  struct Stream {
    bool is_first = true;  // no token yet
    std::string byte_run;  // bytes of ByteFallback that may still become characters
    size_t num_stripped = 0;
    bool is_stripping = true;  // nothing was written yet that ends a Strip behind a Fuse
  };
  /// The bytes that became certain with this token, and those that are left at the end.
  std::string add(std::string token, Stream& stream) const;
  std::string finish(Stream& stream) const;

  /// The bytes that a token adds to the output, in the middle of a text where that matters; without
  /// a decoder those of a first one.
  std::string token_bytes(std::string token) const;

 private:
  enum class Kind { kByteLevel, kByteFallback, kMetaspace, kFuse, kReplace, kStrip };
  struct Step {
    Kind kind;
    std::optional<Regex> regex;             // kReplace
    std::string content;                    // kReplace, kStrip, kMetaspace (one character)
    bool drops_first = false;               // kMetaspace: those of the first token vanish
    size_t strip_start = 0, strip_end = 0;  // kStrip, in characters
  };
  void add(const JsonNode& node);
  static std::string apply_to_token(const Step& step, const std::string& token, bool is_first,
                                    RegexScratch& scratch);
  void find_streamability();
  std::string strip_start(std::string text, Stream& stream) const;

  std::vector<Step> steps_;
  std::optional<Step> fused_strip_;  // the Strip behind a Fuse, where text can be streamed
  bool joins_with_space_ = false;
  bool is_streamable_ = true;
};

}  // namespace vitrine::tokenizer
