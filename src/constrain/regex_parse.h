// SPDX-License-Identifier: Apache-2.0
// Regular expressions in ECMA-262's syntax, as JSON Schema's `pattern` has them.
#pragma once

#include <string>
#include <string_view>

#include "regex_pool.h"

namespace vitrine::constrain {

/// Why a pattern was not taken: malformed, or of a kind that no automaton is made for.
struct PatternError {
  std::string message;  // "… at character 5"
};

enum class PatternScope {
  kSearch,  // a match anywhere in the text is enough
  kWhole,   // the whole text must match
  kPart,    // the same, of a text that stands behind another: without lookbehind
};

/// The texts that a pattern accepts. Character classes are ECMA-262's (\d and \w are ASCII). Throws
/// PatternError. `ignore_case`: of ASCII letters.
NodeId compile_pattern(RegexPool& pool, std::string_view pattern, PatternScope scope,
                       bool ignore_case = false);

}  // namespace vitrine::constrain
