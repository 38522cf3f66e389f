// The decoder of a tokenizer.json: tokens to text, at once or one by one.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "json_reader.h"
#include "regex.h"

namespace vitrine::tokenizer {

/// ByteLevel, Fuse, Replace, Strip and sequences of them. Immutable after loading.
class Decoder {
 public:
  /// From the field `decoder` (null: tokens with a space between them, as tokenizers does).
  static Decoder load(const JsonNode& node);

  /// The text of a whole sequence of tokens.
  std::string decode(std::vector<std::string> tokens) const;

  /// Whether each token's bytes are independent of the others, so that text can be streamed.
  /// Otherwise (a Replace or Strip behind a Fuse) only the whole sequence can be decoded.
  bool is_streamable() const { return is_streamable_; }
  /// The bytes that a token adds to the output; `is_first` matters without a decoder only.
  std::string token_bytes(std::string token, bool is_first) const;

 private:
  enum class Kind { kByteLevel, kFuse, kReplace, kStrip };
  struct Step {
    Kind kind;
    std::optional<Regex> regex;             // kReplace
    std::string content;                    // kReplace, kStrip (one character)
    size_t strip_start = 0, strip_end = 0;  // kStrip, in characters
  };
  void add(const JsonNode& node);
  static std::string apply_to_token(const Step& step, const std::string& token,
                                    RegexScratch& scratch);

  std::vector<Step> steps_;
  bool joins_with_space_ = false;
  bool is_streamable_ = true;
};

}  // namespace vitrine::tokenizer
