// SPDX-License-Identifier: Apache-2.0
// Measures how fast something is that takes a while, as the best of several tries. It is a header
// alone, for backends.
#pragma once

#include <algorithm>
#include <chrono>

namespace vitrine::engine {

/// Returns the bytes a second of the fastest pass over `bytes` among those that begin within
/// `seconds`, at least two.
template <typename Pass>
double best_rate(double bytes, double seconds, const Pass& pass) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  double best = 0;
  const Clock::time_point begin = Clock::now();
  for (int passes = 0; passes < 2 || since(begin) < seconds; ++passes) {
    const Clock::time_point start = Clock::now();
    pass();
    best = std::max(best, bytes / since(start));
  }
  return best;
}

}  // namespace vitrine::engine
