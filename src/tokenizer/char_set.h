// SPDX-License-Identifier: Apache-2.0
// Sets of code points as PCRE2 patterns, with Oniguruma's idea of every property.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace vitrine::tokenizer {

/// PCRE2 class items (to be put between brackets) of Unicode's White_Space, which is what \s means
/// to Oniguruma and Rust; PCRE2's own \s has U+180E as well.
inline constexpr char kWhitespaceItems[] =
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";
/// What both call a word's character, up to their differing additions (unicode.h).
inline constexpr char kWordItems[] = "\\p{L}\\p{M}\\p{Nl}\\p{Nd}\\p{Pc}";
/// Any one code point.
inline constexpr char kAnyChar[] = "(?s:.)";

/// Lowers a letter of ASCII and leaves any other byte.
constexpr char ascii_lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

/// A set of code points: (items or one of `nested`), met by all of `intersections`, negated or not.
struct CharSet {
  std::string items;  // what stands between the brackets of a PCRE2 class
  std::vector<CharSet> nested;
  std::vector<CharSet> intersections;
  bool negated = false;

  bool is_flat() const { return nested.empty() && intersections.empty(); }
  /// A PCRE2 pattern that matches one code point of the set.
  std::string render() const;
};

/// Oniguruma's \p{name}: general categories, common scripts, Any, Space, Word. Throws RegexError
/// (unsupported) for others.
CharSet property_set(std::string_view name, bool in_class);
/// Oniguruma's \w, which has six more code points (as U+00B2) alone than in a class.
CharSet word_set(bool in_class);

}  // namespace vitrine::tokenizer
