// SPDX-License-Identifier: Apache-2.0
// The vocabulary by what its tokens are made of: kinds of characters and length. A state of an
// automaton that goes on whatever letters come allows all tokens of letters, without a look at
// each.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "byte_set.h"

namespace vitrine::constrain {

class TokenSlices {
 public:
  /// Lower case, upper case, digits, the space, "-" and "_", and ASCII's other printable characters
  /// but for the two that JSON escapes.
  static constexpr uint32_t kKinds = 6;
  static constexpr uint32_t kSets = 1U << kKinds;
  /// A slice holds tokens of at most so many bytes.
  static constexpr std::array<uint32_t, 3> kLengths = {4, 8, 20};
  static constexpr uint32_t kOdd = kLengths.size();

  /// What a token is made of: bits of kinds, and the first length that holds it (kOdd: it is too
  /// long, or has other characters).
  struct Profile {
    uint8_t kinds = 0, length = 0;
    /// The profile of two tokens together.
    Profile operator|(Profile other) const {
      return {static_cast<uint8_t>(kinds | other.kinds),
              length > other.length ? length : other.length};
    }
    bool is_within(uint32_t set, uint32_t most) const {
      return (kinds & ~set) == 0 && length <= most;
    }
  };
  static Profile profile_of(std::string_view token);
  /// The bytes of these kinds.
  static const ByteSet& bytes_of(uint32_t set);

  /// `profiles`: of the ids; an id without text is odd.
  void build(const std::vector<Profile>& profiles);
  bool is_built() const { return !masks_.empty(); }
  /// Tokens within these kinds and this length: a mask, and how many.
  const std::vector<uint32_t>& mask(uint32_t set, uint32_t length) const {
    return masks_[set * kLengths.size() + length];
  }
  uint32_t count(uint32_t set, uint32_t length) const {
    return counts_[set * kLengths.size() + length];
  }

 private:
  std::vector<std::vector<uint32_t>> masks_;  // [kSets * lengths][words]
  std::vector<uint32_t> counts_;
};

}  // namespace vitrine::constrain
