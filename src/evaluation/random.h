// SPDX-License-Identifier: Apache-2.0
// Private to the library: numbers that seem random and are the same on every machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vitrine::evaluation {

/// SplitMix64 (Steele, Lea, Flood 2014). Nothing of the standard library's distributions is used:
/// these differ between its makers.
class Random {
 public:
  /// `stream` names what the numbers are for: other names give other numbers.
  Random(uint64_t seed, std::string_view stream);

  uint64_t next();
  /// Each of 0 to count - 1 alike; `count` is at least 1.
  uint64_t below(uint64_t count);
  /// Each of `least` to `most` alike.
  int64_t between(int64_t least, int64_t most);

  template <typename Value>
  const Value& choose(const std::vector<Value>& values) {
    return values[below(values.size())];
  }
  /// Fisher and Yates.
  template <typename Value>
  void shuffle(std::vector<Value>& values) {
    for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }
  /// `count` different places below `size`, in random order; `count` is at most `size`.
  std::vector<size_t> sample(size_t size, size_t count);
  /// `size` characters of `alphabet`.
  std::string text(std::string_view alphabet, size_t size);

 private:
  uint64_t state_;
};

}  // namespace vitrine::evaluation
