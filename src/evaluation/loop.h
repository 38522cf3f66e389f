// SPDX-License-Identifier: Apache-2.0
// Private to the library: finds answers that run in circles.
#pragma once

#include <cstddef>
#include <string_view>

namespace vitrine::evaluation {

inline constexpr size_t kLeastRepeats = 4;         // of a piece
inline constexpr size_t kLeastLoopBytes = 80;      // of all repeats together
inline constexpr size_t kLongestLoopPiece = 1024;  // bytes

/// Returns true where a text, blanks at its end left out, ends in a piece of at most
/// kLongestLoopPiece bytes that stands there kLeastRepeats times or more, one behind the other, the
/// last one cut off or whole, in kLeastLoopBytes or more.
bool ends_in_loop(std::string_view text);

}  // namespace vitrine::evaluation
