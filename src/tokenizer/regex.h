// SPDX-License-Identifier: Apache-2.0
// Regular expressions as PyPI's `tokenizers` (Oniguruma) understands them, run by PCRE2.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::tokenizer {

/// Thrown for a pattern that is malformed or uses a construct that is not translated; the loader
/// turns it into a vitrine::Error with the file and field.
struct RegexError {
  bool is_unsupported;  ///< valid for Oniguruma, but not translated
  std::string message;
};

/// Rewrites an Oniguruma pattern as a PCRE2 pattern (UTF, UCP) of the same meaning, for the
/// constructs that tokenizers use: classes with nesting and &&, properties (at Oniguruma's version
/// of Unicode), anchors, lookaround, atomic groups, lazy and possessive repeats, (?i:) of ASCII.
/// Capturing groups lose their number. Throws RegexError.
std::string translate_oniguruma(std::string_view pattern);

/// One part of a text that was searched: a match, or what lies between two.
struct RegexSpan {
  size_t begin, end;
  bool is_match;
};

/// What searches need beside the pattern: memory and a deadline, both from the first search on. One
/// per call of encode or decode; not shared between threads.
class RegexScratch {
 public:
  /// `cancelled`: a host's flag, which ends a search with kCancelled; null: none.
  explicit RegexScratch(const std::atomic<bool>* cancelled = nullptr);
  ~RegexScratch();

 private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state_;
  const std::atomic<bool>* cancelled_;
};

/// A compiled pattern. Immutable: any number of threads may search at once.
class Regex {
 public:
  /// From Oniguruma's syntax. Throws RegexError.
  static Regex from_oniguruma(std::string_view pattern);
  /// A fixed string.
  static Regex from_literal(std::string_view text);
  /// From PCRE2's own syntax (UTF, UCP). Throws RegexError.
  static Regex from_pcre2(std::string pattern);

  /// Cuts `text` (valid UTF-8) into matches and what lies between; the spans cover the text in
  /// order, empty matches included. Throws vitrine::Error: kInvalidArgument where the search
  /// exceeds its limits, kCancelled where its flag is raised.
  void split(std::string_view text, RegexScratch& scratch, std::vector<RegexSpan>& spans) const;

 private:
  struct Code;
  explicit Regex(std::shared_ptr<const Code> code);
  std::shared_ptr<const Code> code_;
};

}  // namespace vitrine::tokenizer
