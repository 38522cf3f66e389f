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
  } kind = kSequence;
  CharSet chars;
  std::vector<Syntax> children;
  uint32_t low = 0, high = 0;
  bool negative = false;
  bool has_assertion = false;  // an anchor or lookahead, here or below
  bool has_start = false;      // ^, here or below (a lookahead's too)
};

/// Throws PatternError.
Syntax parse_syntax(std::string_view pattern);

}  // namespace vitrine::constrain
