// SPDX-License-Identifier: Apache-2.0
#include "evaluation/loop.h"

#include <algorithm>

namespace vitrine::evaluation {

namespace {

/// How many bytes at the end are each equal to the one `period` bytes before.
size_t periodic_bytes(std::string_view text, size_t period) {
  size_t count = 0;
  while (count + period < text.size() &&
         text[text.size() - 1 - count] == text[text.size() - 1 - count - period]) {
    ++count;
  }
  return count;
}

}  // namespace

bool ends_in_loop(std::string_view text) {
  const size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string_view::npos) return false;
  text = text.substr(0, end + 1);
  const size_t longest = std::min(kLongestLoopPiece, text.size() / kLeastRepeats);
  for (size_t period = 1; period <= longest; ++period) {
    const size_t repeated = periodic_bytes(text, period) + period;
    if (repeated >= std::max(kLeastRepeats * period, kLeastLoopBytes)) return true;
  }
  return false;
}

}  // namespace vitrine::evaluation
