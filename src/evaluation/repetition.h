// SPDX-License-Identifier: Apache-2.0
// Private to the library: answers that end in a loop.
#pragma once

#include <string_view>

namespace vitrine::evaluation {

/// Whether a text ends in a repetition: for some p, its last n characters (Unicode's code points,
/// with or without white space at the end) have the period p, n is at least 4 p and at least 64,
/// and the repeated part has a letter or a digit. So "ab" 32 times is a loop, and a line of 100
/// dashes is none. Takes time in proportion to the text; only its last 8192 characters are looked
/// at.
bool ends_in_repetition(std::string_view text);

}  // namespace vitrine::evaluation
