// SPDX-License-Identifier: Apache-2.0
// What a step takes by how many tokens it brings, learned from the steps that were run.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace vitrine::serve {

/// Means of steps by powers of two of their tokens, the newer the heavier; lines lie between. Not
/// thread-safe.
class StepCosts {
 public:
  /// Is told of a step.
  void add(int64_t tokens, double seconds);
  /// Returns what a step of so many tokens takes, in seconds; 0 where nothing is known.
  double of(int64_t tokens) const;
  /// Returns how many tokens a step may bring, at most `most`, so that it takes no longer than so
  /// many seconds; `most` where nothing is known.
  int64_t tokens_within(double seconds, int64_t most) const;
  /// Returns what each token of a large step takes, in seconds; a small number above 0 where
  /// nothing is known.
  double of_prompt_token() const;
  /// Whether one more token beside so many costs little, since a step waits for its weights rather
  /// than for its arithmetic: less than half of a lone token's step.
  bool is_cheap_beside(int64_t tokens) const;

 private:
  struct Range {
    double tokens = 0, seconds = 0;
  };
  static constexpr size_t kRanges = 24;
  std::array<Range, kRanges> ranges_;
};

}  // namespace vitrine::serve
