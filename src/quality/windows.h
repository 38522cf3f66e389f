// SPDX-License-Identifier: Apache-2.0
// Walks through a text's windows, a step at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "quality/reader.h"

namespace vitrine::quality {

/// Throws kInvalidArgument for options out of range and a text too short, or with ids that `reader`
/// lacks.
void check_windows(const Reader& reader, std::span<const int32_t> ids,
                   const WindowOptions& options);

/// The tokens of one step, and the id behind each: tokens[i + 1], of the last one `next`.
struct WindowStep {
  size_t window = 0;  ///< its number
  size_t first = 0;   ///< position of tokens[0] in it; 0: the window begins
  std::span<const int32_t> tokens;
  int32_t next = 0;

  int32_t behind(size_t i) const { return i + 1 < tokens.size() ? tokens[i + 1] : next; }
};

/// Calls `on_step` with each step of at most `step_tokens` tokens; returns how many windows there
/// are. The options and the text have been checked.
template <typename OnStep>
size_t walk_windows(std::span<const int32_t> ids, const WindowOptions& options, size_t step_tokens,
                    const OnStep& on_step) {
  const auto width = static_cast<size_t>(options.window);
  size_t number = options.first_window;
  for (size_t begin = 0; begin + 1 < ids.size(); begin += width, ++number) {
    if (number % options.every != 0) continue;
    const std::span<const int32_t> window = ids.subspan(begin, std::min(width, ids.size() - begin));
    // The last id has no successor in its window.
    for (size_t first = 0; first + 1 < window.size(); first += step_tokens) {
      if (options.before_step) options.before_step();
      const size_t count = std::min(step_tokens, window.size() - 1 - first);
      on_step(WindowStep{number, first, window.subspan(first, count), window[first + count]});
    }
  }
  return number - options.first_window;
}

}  // namespace vitrine::quality
