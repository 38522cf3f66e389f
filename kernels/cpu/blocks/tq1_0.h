// SPDX-License-Identifier: Apache-2.0
// TQ1_0: 240 numbers of base three, five to each of 48 bytes, 16 more, four to each of 4, a half d;
// d * (u - 1). A byte is a fraction of 256: its first digit is the whole part of three times it,
// and what is left holds the next.
#pragma once

#include "format.h"

namespace vitrine::kernels::blocks {

struct Tq1_0 : OneHalf<256> {
  static constexpr BlockFormat kFormat = BlockFormat::kTq1_0;
  static constexpr const char* kName = "tq1_0";
  static constexpr int kCols = 256, kBytes = 54;
  // The 52 bytes as 13 words: the first eight hold units 0 to 4, a digit each; four more the next
  // 80 numbers, 16 for each digit, the last one the rest, four for each digit.
  static constexpr int kUnitBytes = 13 * kRowWords / 8;
  static constexpr int kBias = 1, kChain = 8;
  static constexpr bool kTwoParts = false, kTwoScales = false, kHasMinimum = false;

  VITRINE_BLOCK_INLINE bool pack(const uint8_t* block, int r, uint8_t* units, uint8_t* scales) {
    for (int w = 0; w < 13; ++w) memcpy(units + kRowWords * w + 4 * r, block + 4 * w, 4);
    put_half(scales, r, half_of(block + 52));
    return is_finite_half(half_of(block + 52));
  }

  template <class Lanes>
  VITRINE_BLOCK_INLINE Eight<Lanes> step(const uint8_t* unit, int64_t g, int s, int half) {
    const int u = static_cast<int>(g % 8);
    const uint8_t* words = unit - kUnitBytes * u;
    return {four<Lanes>(words, u, 2 * s, half), four<Lanes>(words, u, 2 * s + 1, half)};
  }

 private:
  /// The numbers of columns 4f … 4f + 3 of unit u.
  template <class Lanes>
  VITRINE_BLOCK_INLINE typename Lanes::Bytes four(const uint8_t* words, int u, int f, int half) {
    int word, digit;
    if (u < 5) {
      word = f;
      digit = u;
    } else if (u == 7 && f >= 4) {
      word = 12;
      digit = f - 4;
    } else {
      word = 8 + f % 4;
      digit = 2 * (u - 5) + f / 4;
    }
    auto bytes = Lanes::words(words + kRowWords * word, half);
    for (int i = 0; i < digit; ++i) {
      bytes = Lanes::add_bytes(bytes, Lanes::add_bytes(bytes, bytes));
    }
    // The whole part of 3 * byte / 256.
    return Lanes::count_above(bytes, 85, 170);
  }
};

}  // namespace vitrine::kernels::blocks
