// SPDX-License-Identifier: Apache-2.0
// The syntax tree of a regular expression.
#pragma once

#include <string_view>
#include <vector>

#include "char_ranges.h"

namespace vitrine::constrain {

struct Syntax {
  enum Kind : uint8_t {
    kChars,
    kSequence,
    kAlternatives,
    kRepeat,     // one child, low to high times
    kStart,      // ^
    kEnd,        // $
    kLookahead,  // one child
    kLookbehind,
  } kind = kSequence;
  CharSet chars;
  std::vector<Syntax> children;
  uint32_t low = 0, high = 0;
  bool negative = false;
  bool has_assertion = false;   // an anchor or lookaround, here or below
  bool has_start = false;       // ^, here or below (a lookahead's too, a lookbehind's not)
  bool has_lookbehind = false;  // here or below
  size_t position = 0;          // of an assertion: of its first character, from 1 on
};

/// Throws PatternError.
Syntax parse_syntax(std::string_view pattern);

}  // namespace vitrine::constrain
