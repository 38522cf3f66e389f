// SPDX-License-Identifier: Apache-2.0
// The normaliser of a tokenizer.json: text to text.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "json_reader.h"
#include "regex.h"
#include "unicode.h"

namespace vitrine::tokenizer {

/// NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip, ByteLevel and sequences of them.
/// Immutable after loading.
class Normalizer {
 public:
  /// From the field `normalizer` (null: nothing to do).
  static Normalizer load(const JsonNode& node);

  bool is_empty() const { return steps_.empty(); }
  /// Normalises valid UTF-8.
  std::string apply(std::string text, RegexScratch& scratch) const;

 private:
  enum class Kind { kUnicode, kLowercase, kPrepend, kReplace, kStrip, kByteLevel };
  struct Step {
    Kind kind;
    NormalizationForm form = NormalizationForm::kNfc;
    std::string content;         // kPrepend, kReplace
    std::optional<Regex> regex;  // kReplace
    bool strip_left = false, strip_right = false;
  };
  void add(const JsonNode& node);

  std::vector<Step> steps_;
};

/// Texts are refused above this, before and after normalisation.
constexpr size_t kMaxTextBytes = size_t{256} << 20;

/// Replaces every match of `regex` in `text` by `content`. Throws vitrine::Error (kInvalidArgument)
/// where the result exceeds kMaxTextBytes.
std::string replace_matches(const Regex& regex, std::string_view text, const std::string& content,
                            RegexScratch& scratch);

/// Writes each byte of `text` as its character of the byte-level alphabet.
void append_byte_level(std::string_view text, std::string& out);

}  // namespace vitrine::tokenizer
