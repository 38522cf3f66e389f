// SPDX-License-Identifier: Apache-2.0
// Sets of Unicode code points as sorted ranges.
#pragma once

#include <string_view>
#include <vector>

#include "regex_pool.h"

namespace vitrine::constrain {

/// Sorted, disjoint, not touching, without surrogates.
using CharSet = std::vector<CodeRange>;

/// Sorts and merges.
CharSet normalize(CharSet set);
CharSet complement(const CharSet& set);
CharSet intersect(const CharSet& x, const CharSet& y);
/// With each ASCII letter, its other case.
CharSet fold_ascii_case(CharSet set);

/// What \d, \w, \s and the dot stand for in ECMA-262.
CharSet digit_chars();
CharSet word_chars();
CharSet space_chars();
CharSet dot_chars();
/// A property as ECMA-262 names it: a general category by its short or long name ("L", "Lu",
/// "Letter", "gc=Lu"), "Any", "ASCII", "Script=Greek", "scx=Grek", "Alphabetic"; empty for another
/// name.
CharSet property_chars(std::string_view name);
/// The characters of a script or of a binary property. Takes some 30 ms for one that was not asked
/// for before. Thread-safe.
CharSet unicode_property(std::string_view name);

inline constexpr uint32_t kNoCodePoint = 0xFFFFFFFF;

/// Reads one character of UTF-8 at `at` and moves behind it; kNoCodePoint, and `at` stays, where
/// there is none.
uint32_t decode_utf8(std::string_view text, size_t& at);

}  // namespace vitrine::constrain
