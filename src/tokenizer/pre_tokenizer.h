// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizer of a tokenizer.json: text to the words that BPE works on.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "json_reader.h"
#include "metaspace.h"
#include "regex.h"

namespace vitrine::tokenizer {

/// A text cut into words: spans [begin, end) of `text`, in order, none empty.
struct Words {
  struct Span {
    size_t begin, end;
  };
  std::string text;
  std::vector<Span> spans;

  std::string_view word(const Span& span) const {
    return std::string_view(text).substr(span.begin, span.end - span.begin);
  }
};

/// Split, ByteLevel, Metaspace, Digits, Punctuation, Whitespace, WhitespaceSplit and sequences of
/// them. Immutable after loading.
class PreTokenizer {
 public:
  /// From the field `pre_tokenizer` (null: one word).
  static PreTokenizer load(const JsonNode& node);

  /// Cuts valid UTF-8 into words. `is_start`: nothing of the whole input stands before it.
  Words apply(std::string text, bool is_start, RegexScratch& scratch) const;

 private:
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    std::optional<Regex> regex;  // where to cut
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
    bool add_prefix_space = false;       // before the cut
    std::optional<Metaspace> metaspace;  // before the cut
    bool to_bytes = false;               // after the cut, into the byte-level alphabet
  };
  void add(const JsonNode& node);
  static Behavior load_behavior(const JsonNode& node);
  static void replace_spaces(const Metaspace& metaspace, bool is_start, Words& words);
  static void cut(std::vector<RegexSpan>& spans, Behavior behavior);

  std::vector<Step> steps_;
};

}  // namespace vitrine::tokenizer
