// SPDX-License-Identifier: Apache-2.0
// How the AVX2 products unpack each quantized format: half a tile (8 rows) is one vector, lane =
// row.
#pragma once

#include "linear.h"

namespace vitrine::kernels::avx2 {
namespace {

constexpr int kUnit = 32;  // columns; every group is a multiple of it

/// One tile (16 rows) of a packed matrix.
struct Tile {
  const uint8_t* data;
  const uint8_t* scales;
  const uint8_t* offsets;
  ScaleFormat scale_format;
  OffsetFormat offset_format;
  float multiplier = 1.0f;
};

/// Eight columns of eight rows: low holds the first four of each row, high the last four.
struct Step {
  __m256i low;
  __m256i high;
};

/// What a group's numbers mean: scale * (number - bias) + minimum. Where its halves have minimums
/// of their own, `minimum` is the scale of these, and bias_words make the sum of their products.
struct Group {
  __m256 scale;
  __m256i
      bias_words;  // 16-bit pairs to multiply with a GroupSum: what the sum of products begins at
  __m256 minimum;
  __m256i part_scale[2];  // where the group's halves have their own
};

VITRINE_INLINE __m256i load_256(const void* data) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(data));
}

VITRINE_INLINE __m128i load_64(const uint8_t* data) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(data));
}

VITRINE_INLINE Step nibbles(const uint8_t* run) {
  const __m256i raw = load_256(run);
  const __m256i nibble = _mm256_set1_epi8(15);
  return {_mm256_and_si256(raw, nibble), _mm256_and_si256(_mm256_srli_epi16(raw, 4), nibble)};
}

/// {-bias, 0} for every lane.
VITRINE_INLINE __m256i bias_words(int bias) { return _mm256_set1_epi32(-bias & 0xffff); }

VITRINE_INLINE __m256 load_scales(ScaleFormat format, const uint8_t* scales, int64_t index) {
  switch (format) {
    case ScaleFormat::kF16: return load_8<WeightFormat::kF16>(scales + 2 * index);
    case ScaleFormat::kBF16: return load_8<WeightFormat::kBF16>(scales + 2 * index);
    default: return load_8<WeightFormat::kF32>(scales + 4 * index);
  }
}

VITRINE_INLINE __m256 load_minimums(OffsetFormat format, const uint8_t* offsets, int64_t index) {
  switch (format) {
    case OffsetFormat::kF16: return load_8<WeightFormat::kF16>(offsets + 2 * index);
    case OffsetFormat::kBF16: return load_8<WeightFormat::kBF16>(offsets + 2 * index);
    default: return load_8<WeightFormat::kF32>(offsets + 4 * index);
  }
}

/// kChain: how many products of two (vpmaddubsw) may be added in 16 bits; 0: not one, since the
/// bytes need all eight bits.
template <int kUnsignedBias, int kBytes, int kChainLength>
struct IntegerFormat {
  static constexpr int kBias = kUnsignedBias;
  static constexpr int kUnitBytes = kBytes;
  static constexpr int kChain = kChainLength;
  static constexpr bool kShortGroups = false;  // every group is one unit
  static constexpr bool kTwoParts = false;
  static constexpr bool kTwoScales = false;
  static constexpr bool kPartMinimums = false;

  VITRINE_INLINE bool has_minimum(const Tile& tile) {
    return tile.offset_format > OffsetFormat::kZeroPoint;
  }

  /// kSignedProducts: the numbers are multiplied with `kBias` already taken off.
  template <bool kSignedProducts>
  VITRINE_INLINE Group group(const Tile& tile, int64_t g, int half) {
    constexpr int kTaken = kSignedProducts ? kBias : 0;
    const int64_t index = kTileRows * g + 8 * half;
    Group group;
    group.scale = load_scales(tile.scale_format, tile.scales, index);
    group.bias_words = bias_words(kBias - kTaken);
    group.minimum = _mm256_setzero_ps();
    if (tile.offset_format == OffsetFormat::kZeroPoint) {
      const __m256i zero_points = _mm256_cvtepi8_epi32(load_64(tile.offsets + index));
      const __m256i bias = _mm256_sub_epi32(_mm256_set1_epi32(kTaken - kBias), zero_points);
      group.bias_words = _mm256_and_si256(bias, _mm256_set1_epi32(0xffff));
    } else if (tile.offset_format != OffsetFormat::kNone) {
      group.bias_words = bias_words(-kTaken);
      group.minimum = load_minimums(tile.offset_format, tile.offsets, index);
    }
    return group;
  }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    const int64_t groups = group_count(weight.cols, weight.group_size);
    const int64_t scale_bytes = scale_size(weight.scale_format);
    const int64_t offset_bytes = weight.offset_format == OffsetFormat::kZeroPoint ? 1
                                 : weight.offset_format == OffsetFormat::kF32     ? 4
                                                                                  : 2;
    const int64_t first = index * groups * kTileRows;
    const auto* offsets = static_cast<const uint8_t*>(weight.offsets);
    return {static_cast<const uint8_t*>(weight.data) +
                index * (padded_cols(weight.cols) / kUnit) * kUnitBytes,
            static_cast<const uint8_t*>(weight.scales) + first * scale_bytes,
            offsets != nullptr ? offsets + first * offset_bytes : nullptr, weight.scale_format,
            weight.offset_format};
  }
};

/// 8 * 2 * 15 * 127 < 2^15.
struct Int4 : IntegerFormat<8, kUnit * kTileRows / 2, 8> {
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int half, int s) {
    return nibbles(unit + 64 * s + 32 * half);
  }
};

/// 8 * 2 * 7 * 127 < 2^15.
struct Int3 : IntegerFormat<4, kUnit * kTileRows * 3 / 8, 8> {
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int half, int s) {
    const __m256i three = _mm256_set1_epi8(7);
    if (s < 3) {
      const __m256i raw = load_256(unit + 64 * s + 32 * half);
      return {_mm256_and_si256(raw, three), _mm256_and_si256(_mm256_srli_epi16(raw, 3), three)};
    }
    const __m256i a = load_256(unit + 32 * half), b = load_256(unit + 64 + 32 * half);
    const __m256i c = load_256(unit + 128 + 32 * half);
    const __m256i low_two = _mm256_set1_epi8(3), high_one = _mm256_set1_epi8(4);
    return {_mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(a, 6), low_two),
                            _mm256_and_si256(_mm256_srli_epi16(c, 4), high_one)),
            _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(b, 6), low_two),
                            _mm256_and_si256(_mm256_srli_epi16(c, 5), high_one))};
  }
};

/// 2 * 255 * 127 does not fit 16 bits: signed values are multiplied, of which 2 * 128 * 127 does.
struct Int8 : IntegerFormat<128, kUnit * kTileRows, 0> {
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int half, int s) {
    return {load_256(unit + 128 * s + 32 * half), load_256(unit + 128 * s + 64 + 32 * half)};
  }
};

template <int kBytes, int kChainLength, bool kParts, bool kMinimums = false>
struct BlockFormat {
  static constexpr int kUnitBytes = kBytes;
  static constexpr int kChain = kChainLength;
  static constexpr bool kShortGroups = true;
  static constexpr bool kTwoParts = kParts;
  static constexpr bool kTwoScales = false;
  static constexpr bool kPartMinimums = kMinimums;

  VITRINE_INLINE Tile tile_of(const Weight& weight, int64_t index, int64_t scale_bytes) {
    const int64_t units = padded_cols(weight.cols) / kUnit;
    return {static_cast<const uint8_t*>(weight.data) + index * units * kUnitBytes,
            static_cast<const uint8_t*>(weight.scales) + index * scale_bytes, nullptr,
            weight.scale_format, weight.offset_format};
  }
};

/// 4 * 2 * 3 * 127 < 2^15; a longer chain would leave its part of the group.
struct Q2K : BlockFormat<kUnit * kTileRows / 4, 4, true, true> {
  VITRINE_INLINE bool has_minimum(const Tile&) { return true; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return tile_of(weight, index, weight.cols / 256 * 320);
  }

  template <bool>
  VITRINE_INLINE Group group(const Tile& tile, int64_t g, int half) {
    const uint8_t* block = tile.scales + g / 8 * 320;
    const uint8_t* parts = block + 64 + 32 * (g % 8) + 8 * half;
    const __m256i first = _mm256_cvtepu8_epi32(load_64(parts));
    const __m256i second = _mm256_cvtepu8_epi32(load_64(parts + 16));
    const __m256i nibble = _mm256_set1_epi32(15);
    Group group;
    group.scale = load_8<WeightFormat::kF16>(block + 16 * half);
    group.minimum = load_8<WeightFormat::kF16>(block + 32 + 16 * half);
    group.part_scale[0] = _mm256_and_si256(first, nibble);
    group.part_scale[1] = _mm256_and_si256(second, nibble);
    // -(m0 * first_half + m1 * (whole - first_half)), as words for whole and first_half.
    const __m256i whole = _mm256_srli_epi32(second, 4);
    const __m256i first_half = _mm256_sub_epi32(whole, _mm256_srli_epi32(first, 4));
    const __m256i negative = _mm256_sub_epi32(_mm256_setzero_si256(), whole);
    group.bias_words = _mm256_blend_epi16(negative, _mm256_slli_epi32(first_half, 16), 0xaa);
    return group;
  }

  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int half, int s) {
    const __m256i raw = load_256(unit + 64 * (s / 2) + 32 * half);
    const __m256i two = _mm256_set1_epi8(3);
    const __m256i low = s % 2 == 0 ? raw : _mm256_srli_epi16(raw, 4);
    const __m256i high = s % 2 == 0 ? _mm256_srli_epi16(raw, 2) : _mm256_srli_epi16(raw, 6);
    return {_mm256_and_si256(low, two), _mm256_and_si256(high, two)};
  }
};

struct Q4K : BlockFormat<kUnit * kTileRows / 2, 8, false> {
  VITRINE_INLINE bool has_minimum(const Tile&) { return true; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return tile_of(weight, index, weight.cols / 256 * 256);
  }

  template <bool>
  VITRINE_INLINE Group group(const Tile& tile, int64_t g, int half) {
    const uint8_t* block = tile.scales + g / 8 * 256;
    const int in_block = static_cast<int>(g % 8);
    const __m128i low = load_64(block + 64 + 16 * in_block + 8 * half);
    const __m128i pair = load_64(block + 192 + 16 * (in_block / 2) + 8 * half);
    const __m128i high = _mm_srl_epi16(pair, _mm_cvtsi32_si128(4 * (in_block % 2)));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i high_bits = _mm_set1_epi8(0x30);
    const __m128i scales =
        _mm_or_si128(_mm_and_si128(low, nibble), _mm_and_si128(_mm_slli_epi16(high, 4), high_bits));
    const __m128i minimums = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(low, 4), nibble),
                                          _mm_and_si128(_mm_slli_epi16(high, 2), high_bits));
    Group group;
    group.scale = _mm256_mul_ps(load_8<WeightFormat::kF16>(block + 16 * half),
                                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(scales)));
    const __m256 minimum = _mm256_mul_ps(load_8<WeightFormat::kF16>(block + 32 + 16 * half),
                                         _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(minimums)));
    group.minimum = _mm256_xor_ps(minimum, _mm256_set1_ps(-0.0f));
    group.bias_words = _mm256_setzero_si256();
    return group;
  }

  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int half, int s) {
    return nibbles(unit + 64 * s + 32 * half);
  }
};

/// 2 * 2 * 63 * 127 < 2^15.
struct Q6K : BlockFormat<kUnit * kTileRows * 6 / 8, 2, true> {
  VITRINE_INLINE bool has_minimum(const Tile&) { return false; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return tile_of(weight, index, weight.cols / 256 * 288);
  }

  template <bool>
  VITRINE_INLINE Group group(const Tile& tile, int64_t g, int half) {
    const uint8_t* block = tile.scales + g / 8 * 288;
    const uint8_t* parts = block + 32 + 32 * (g % 8) + 8 * half;
    Group group;
    group.scale = load_8<WeightFormat::kF16>(block + 16 * half);
    group.minimum = _mm256_setzero_ps();
    group.part_scale[0] = _mm256_cvtepi8_epi32(load_64(parts));
    group.part_scale[1] = _mm256_cvtepi8_epi32(load_64(parts + 16));
    // -32 * (p0 * first_half + p1 * (whole - first_half)), as words for whole and first_half.
    const __m256i whole = _mm256_slli_epi32(group.part_scale[1], 5);
    const __m256i first_half =
        _mm256_slli_epi32(_mm256_sub_epi32(group.part_scale[1], group.part_scale[0]), 5);
    const __m256i negative = _mm256_sub_epi32(_mm256_setzero_si256(), whole);
    group.bias_words = _mm256_blend_epi16(negative, _mm256_slli_epi32(first_half, 16), 0xaa);
    return group;
  }

  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int half, int s) {
    const Step low = nibbles(unit + 64 * s + 32 * half);
    const __m256i high = load_256(unit + 256 + 64 * (s / 2) + 32 * half);
    const __m256i bits = _mm256_set1_epi8(0x30);
    // Bits 0, 2, 4, 6 of a byte begin the fours of columns; they belong at bit 4.
    const __m256i first = s % 2 == 0 ? _mm256_slli_epi16(high, 4) : high;
    const __m256i second = s % 2 == 0 ? _mm256_slli_epi16(high, 2) : _mm256_srli_epi16(high, 2);
    return {_mm256_or_si256(low.low, _mm256_and_si256(first, bits)),
            _mm256_or_si256(low.high, _mm256_and_si256(second, bits))};
  }
};

/// 4 * 2 * 24 * 127 < 2^15.
struct Mxfp4 : BlockFormat<kUnit * kTileRows / 2, 4, false> {
  VITRINE_INLINE bool has_minimum(const Tile&) { return false; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return tile_of(weight, index, weight.cols / 32 * kTileRows);
  }

  template <bool>
  VITRINE_INLINE Group group(const Tile& tile, int64_t g, int half) {
    const __m256i e = _mm256_cvtepu8_epi32(load_64(tile.scales + kTileRows * g + 8 * half));
    const __m256i one = _mm256_set1_epi32(1);
    // 2^(e-128); for e = 0 and 1 a denormal.
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, one), 23);
    const __m256i denormal = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    Group group;
    group.scale =
        _mm256_castsi256_ps(_mm256_blendv_epi8(denormal, normal, _mm256_cmpgt_epi32(e, one)));
    group.minimum = _mm256_setzero_ps();
    group.bias_words = bias_words(12);
    return group;
  }

  /// The values plus 12, so that they are not negative.
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int half, int s) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const Step codes = nibbles(unit + 64 * s + 32 * half);
    return {_mm256_shuffle_epi8(table, codes.low), _mm256_shuffle_epi8(table, codes.high)};
  }
};

}  // namespace
}  // namespace vitrine::kernels::avx2
