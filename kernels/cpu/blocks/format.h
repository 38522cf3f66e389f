// SPDX-License-Identifier: Apache-2.0
// What a block format that is multiplied as it stands says of itself: how its blocks lie in tiles,
// and how a tile is decoded to numbers and scales. A new one is a file in this folder, a line in
// list.h and a number in cpu_kernels.h; every table then has its products.
//
// A tile is 16 rows. Each 32 columns of it are kUnitBytes, one unit after the other; what belongs
// to a block of kCols columns stands apart, kScaleBytes each. Together they are the bytes of the
// blocks in their file, in another order, so that a vector holds the same columns of all rows:
//   a word: four bytes a row, [16 rows][4];
//   a byte or a half a row: [16 rows];
//   a plane: four bits a row (one for each of four columns, say), row r at bit 4 * r, 8 bytes.
//
// A format is a struct of these:
//   kFormat, kName, kCols, kBytes: of a block in the file;
//   kUnitBytes, kScaleBytes: above;
//   kBias: decoded numbers are unsigned bytes; a weight's number is the byte less this;
//   kChain: how many pairs of products of such a byte with an int8 may be added in 16 bits; 0: the
//     bytes need all eight bits, and kBias is 128;
//   kTwoParts: each 16 columns have an integer scale of their own beside that of the 32;
//   kTwoScales: each 16 columns have a scale of their own, and there is no other; `minimum` is that
//     of the last 16;
//   kHasMinimum: weight = scale * number + minimum, and kBias is 0;
//   pack: brings row r of a block into zeroed memory of a tile;
//   group<Lanes>: what 32 columns mean; `data` is where the row's units begin, `scales` its
//     blocks' scales, g the unit;
//   step<Lanes>: the bytes of columns 8s … 8s + 7 of unit g, which begins at `unit`.
// Lanes are an instruction set's vectors: sixteen rows, or half of them (`half` says which).
#pragma once

#include <cstring>

#include "../cpu_kernels.h"

#define VITRINE_BLOCK_INLINE static inline __attribute__((always_inline))

namespace vitrine::kernels::blocks {

constexpr int kUnitCols = 32;
constexpr int kPlaneBytes = 8;
constexpr int kRowHalves = 2 * kTileRows;  // bytes of a half for each row
constexpr int kRowWords = 4 * kTileRows;

/// What 32 columns mean: scale * part * (byte - kBias) + minimum, part by half of the columns.
template <class Lanes>
struct Meaning {
  typename Lanes::Floats scale;
  typename Lanes::Floats minimum;
  typename Lanes::Ints part[2];
};

/// The bytes of eight columns: the first four of each row, and the last.
template <class Lanes>
struct Eight {
  typename Lanes::Bytes low;
  typename Lanes::Bytes high;
};

/// The bytes of sixteen columns.
template <class Lanes>
struct Eights {
  Eight<Lanes> first;
  Eight<Lanes> second;
};

// Packing, one row at a time.

VITRINE_BLOCK_INLINE uint16_t half_of(const uint8_t* bytes) {
  uint16_t half;
  memcpy(&half, bytes, sizeof half);
  return half;
}

VITRINE_BLOCK_INLINE void put_half(uint8_t* halves, int r, uint32_t half) {
  const auto narrow = static_cast<uint16_t>(half);
  memcpy(halves + 2 * r, &narrow, sizeof narrow);
}

/// Adds four bits to a plane.
VITRINE_BLOCK_INLINE void put_bits(uint8_t* plane, int r, uint32_t bits) {
  plane[r / 2] |= static_cast<uint8_t>((bits & 15) << (r % 2 * 4));
}

/// Four neighbouring numbers, the first in the lowest byte.
VITRINE_BLOCK_INLINE uint32_t four_of(const uint8_t* numbers) {
  uint32_t word;
  memcpy(&word, numbers, sizeof word);
  return word;
}

/// The lowest bits of four numbers, shifted right, as four neighbouring bits.
VITRINE_BLOCK_INLINE uint32_t bits_of_four(const uint8_t* numbers, int shift) {
  // Each of the four bits meets the factor that brings it to its place above bit 23, and none of
  // the sixteen products has the place of another.
  return (four_of(numbers) >> shift & 0x01010101) * 0x01020408 >> 24 & 15;
}

/// 32 numbers as nibbles: word s holds columns 8s … 8s + 3 low and the next four high.
VITRINE_BLOCK_INLINE void put_nibbles(uint8_t* words, int r, const uint8_t* numbers) {
  for (int s = 0; s < 4; ++s) {
    const uint32_t low = four_of(numbers + 8 * s) & 0x0f0f0f0f;
    const uint32_t both = low | (four_of(numbers + 8 * s + 4) & 0x0f0f0f0f) << 4;
    memcpy(words + kRowWords * s + 4 * r, &both, sizeof both);
  }
}

/// 32 numbers of two bits, bits `shift` and `shift` + 1 of bytes: word w holds columns
/// 16w … 16w + 15, four after four from the lowest bits on.
VITRINE_BLOCK_INLINE void put_two_bits(uint8_t* words, int r, const uint8_t* bytes, int shift = 0) {
  for (int w = 0; w < 2; ++w) {
    uint32_t all = 0;
    for (int f = 0; f < 4; ++f) {
      all |= (four_of(bytes + 16 * w + 4 * f) >> shift & 0x03030303) << (2 * f);
    }
    memcpy(words + kRowWords * w + 4 * r, &all, sizeof all);
  }
}

/// A bit of each of 32 numbers, as eight planes.
VITRINE_BLOCK_INLINE void put_planes(uint8_t* planes, int r, const uint8_t* numbers, int shift) {
  for (int f = 0; f < 8; ++f) {
    put_bits(planes + kPlaneBytes * f, r, bits_of_four(numbers + 4 * f, shift));
  }
}

/// Nibbles of a file: low ones are the first half of the columns, high ones the second.
VITRINE_BLOCK_INLINE void take_nibbles(const uint8_t* bytes, int half, uint8_t* numbers) {
  for (int i = 0; i < half; ++i) {
    numbers[i] = bytes[i] & 15;
    numbers[half + i] = bytes[i] >> 4;
  }
}

// Decoding.

/// The nibbles of put_nibbles.
template <class Lanes>
VITRINE_BLOCK_INLINE Eight<Lanes> nibbles(const uint8_t* words, int s, int half) {
  const auto word = Lanes::words(words + kRowWords * s, half);
  return {Lanes::field(word, 0, 15), Lanes::field(word, 4, 15)};
}

/// The numbers of put_two_bits.
template <class Lanes>
VITRINE_BLOCK_INLINE Eight<Lanes> two_bits(const uint8_t* words, int s, int half) {
  const auto word = Lanes::words(words + kRowWords * (s / 2), half);
  if (s % 2 == 0) return {Lanes::field(word, 0, 3), Lanes::field(word, 2, 3)};
  return {Lanes::field(word, 4, 3), Lanes::field(word, 6, 3)};
}

/// Adds `value` where put_planes put a bit.
template <class Lanes>
VITRINE_BLOCK_INLINE Eight<Lanes> with_bits(Eight<Lanes> eight, const uint8_t* planes, int s,
                                            int half, uint8_t value) {
  return {Lanes::add_where(eight.low, Lanes::plane(planes + 2 * kPlaneBytes * s, half), value),
          Lanes::add_where(eight.high,
                           Lanes::plane(planes + 2 * kPlaneBytes * s + kPlaneBytes, half), value)};
}

/// Plain meaning: a scale alone.
template <class Lanes>
VITRINE_BLOCK_INLINE Meaning<Lanes> scale_alone(typename Lanes::Floats scale) {
  Meaning<Lanes> meaning;
  meaning.scale = scale;
  meaning.minimum = Lanes::set(0.0f);
  meaning.part[0] = meaning.part[1] = Lanes::set_ints(1);
  return meaning;
}

template <class Lanes>
VITRINE_BLOCK_INLINE Meaning<Lanes> scale_and_parts(typename Lanes::Floats scale,
                                                    typename Lanes::Ints first,
                                                    typename Lanes::Ints second) {
  Meaning<Lanes> meaning;
  meaning.scale = scale;
  meaning.minimum = Lanes::set(0.0f);
  meaning.part[0] = first;
  meaning.part[1] = second;
  return meaning;
}

VITRINE_BLOCK_INLINE bool is_finite_half(uint16_t half) { return (half & 0x7c00) != 0x7c00; }

/// What formats have that keep a half for each kBlockCols columns, and no other scale.
template <int kBlockCols>
struct OneHalf {
  static constexpr int kScaleBytes = kRowHalves;

  template <class Lanes>
  VITRINE_BLOCK_INLINE Meaning<Lanes> group(const uint8_t*, const uint8_t* scales, int64_t g,
                                            int half) {
    return scale_alone<Lanes>(
        Lanes::halves(scales + kScaleBytes * (g * kUnitCols / kBlockCols), half));
  }
};

/// The six bits of scale and minimum u of the eight of a Q4_K or Q5_K block, from 12 bytes.
struct ScaleAndMinimum {
  uint32_t scale, minimum;
};
VITRINE_BLOCK_INLINE ScaleAndMinimum scale_and_minimum(const uint8_t* packed, int u) {
  const uint32_t own = packed[u], next = packed[u + 4];
  if (u < 4) return {own & 63, next & 63};
  return {(next & 15) | static_cast<uint32_t>(packed[u - 4]) >> 6 << 4, next >> 4 | own >> 6 << 4};
}

/// Two numbers of six bits that belong to unit u: the nibbles of a byte for each unit, and of a
/// byte for each two units two high bits of both.
template <class Lanes>
struct SixBits {
  typename Lanes::Ints first;
  typename Lanes::Ints second;
};
template <class Lanes>
VITRINE_BLOCK_INLINE SixBits<Lanes> six_bits(const uint8_t* low_bytes, const uint8_t* high_bytes,
                                             int u, int half) {
  const auto low = Lanes::bytes(low_bytes + kTileRows * u, half);
  const auto pair = Lanes::bytes(high_bytes + kTileRows * (u / 2), half);
  const auto high = Lanes::shift_right(pair, 4 * (u % 2));
  return {Lanes::bit_or(Lanes::mask(low, 15), Lanes::shift_left(Lanes::mask(high, 3), 4)),
          Lanes::bit_or(Lanes::mask(Lanes::shift_right(low, 4), 15),
                        Lanes::shift_left(Lanes::mask(high, 12), 2))};
}

}  // namespace vitrine::kernels::blocks
