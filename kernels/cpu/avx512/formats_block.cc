// SPDX-License-Identifier: Apache-2.0
// The block formats of published files: 2, 4 and 6 bits with scales of scales, and E2M1.
#include "quantized.h"

namespace vitrine::kernels::avx512 {
namespace {

/// What these formats share. kGroupScales: bytes of a group's scales in a tile, an eighth of a
/// super block's where there are such.
template <int kGroupScales>
struct BlockTiles {
  VITRINE_INLINE int64_t scale_bytes(const Tile&) { return kGroupScales; }
  VITRINE_INLINE int64_t offset_bytes(const Tile&) { return 0; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index, int64_t unit_bytes) {
    const int64_t units = padded_cols(weight.cols) / kUnit;
    return {static_cast<const uint8_t*>(weight.data) + index * units * unit_bytes,
            static_cast<const uint8_t*>(weight.scales) + index * units * kGroupScales,
            nullptr,
            weight.scale_format,
            weight.offset_format,
            {}};
  }
};

struct Q2K : BlockTiles<40> {
  static constexpr int kBias = 0;
  static constexpr int kUnitBytes = kUnit * kTileRows / 4;
  static constexpr bool kTwoParts = true;
  static constexpr bool kTwoScales = false;
  static constexpr bool kPartMinimums = true;
  static constexpr bool kPrefetch = true;
  static constexpr int kHighShift = 0;

  VITRINE_INLINE bool has_minimum(const Tile&) { return true; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return BlockTiles::tile(weight, index, kUnitBytes);
  }

  VITRINE_INLINE Group group(Tile& tile, int64_t g) {
    const uint8_t* block = tile.scales + g / 8 * 320;
    const uint8_t* parts = block + 64 + 32 * (g % 8);
    if (g % 8 == 0) {
      tile.super_scale[0] = load_lanes<WeightFormat::kF16>(block);
      tile.super_scale[1] = load_lanes<WeightFormat::kF16>(block + 32);
    }
    const __m512i first = _mm512_cvtepu8_epi32(load_128(parts));
    const __m512i second = _mm512_cvtepu8_epi32(load_128(parts + 16));
    const __m512i nibble = _mm512_set1_epi32(15);
    Group group;
    group.scale = tile.super_scale[0];
    group.minimum = tile.super_scale[1];
    group.part_scale[0] = _mm512_and_si512(first, nibble);
    group.part_scale[1] = _mm512_and_si512(second, nibble);
    // -(m0 * first_half + m1 * (whole - first_half)), as words for whole and first_half.
    const __m512i whole = _mm512_srli_epi32(second, 4);
    const __m512i first_half = _mm512_sub_epi32(whole, _mm512_srli_epi32(first, 4));
    const __m512i negative = _mm512_sub_epi32(_mm512_setzero_si512(), whole);
    group.bias_words = words_of(negative, first_half);
    return group;
  }

  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    const __m512i raw = _mm512_loadu_si512(unit + 64 * (s / 2));
    const __m512i two = _mm512_set1_epi8(3);
    const __m512i low = s % 2 == 0 ? raw : _mm512_srli_epi16(raw, 4);
    const __m512i high = s % 2 == 0 ? _mm512_srli_epi16(raw, 2) : _mm512_srli_epi16(raw, 6);
    return {_mm512_and_si512(low, two), _mm512_and_si512(high, two)};
  }
};

struct Q4K : BlockTiles<32> {
  static constexpr int kBias = 0;
  static constexpr int kUnitBytes = kUnit * kTileRows / 2;
  static constexpr bool kTwoParts = false;
  static constexpr bool kTwoScales = false;
  static constexpr bool kPartMinimums = false;
  static constexpr bool kPrefetch = true;
  static constexpr int kHighShift = 4;

  VITRINE_INLINE bool has_minimum(const Tile&) { return true; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return BlockTiles::tile(weight, index, kUnitBytes);
  }

  VITRINE_INLINE Group group(Tile& tile, int64_t g) {
    const uint8_t* block = tile.scales + g / 8 * 256;
    const int in_block = static_cast<int>(g % 8);
    const __m128i low = load_128(block + 64 + 16 * in_block);
    const __m128i pair = load_128(block + 192 + 16 * (in_block / 2));
    const __m128i high = _mm_srl_epi16(pair, _mm_cvtsi32_si128(4 * (in_block % 2)));
    const __m128i nibble = _mm_set1_epi8(15);
    const __m128i high_bits = _mm_set1_epi8(0x30);
    const __m128i scales =
        _mm_or_si128(_mm_and_si128(low, nibble), _mm_and_si128(_mm_slli_epi16(high, 4), high_bits));
    const __m128i minimums = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(low, 4), nibble),
                                          _mm_and_si128(_mm_slli_epi16(high, 2), high_bits));
    if (in_block == 0) {
      const __m512 minus = _mm512_set1_ps(-0.0f);
      tile.super_scale[0] = load_lanes<WeightFormat::kF16>(block);
      tile.super_scale[1] = _mm512_xor_ps(load_lanes<WeightFormat::kF16>(block + 32), minus);
    }
    Group group;
    group.scale =
        _mm512_mul_ps(tile.super_scale[0], _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(scales)));
    group.minimum =
        _mm512_mul_ps(tile.super_scale[1], _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(minimums)));
    group.bias_words = _mm512_setzero_si512();
    return group;
  }

  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    if constexpr (!kShifted) return nibbles(_mm512_loadu_si512(unit + 64 * s));
    const __m512i raw = _mm512_loadu_si512(unit + 64 * s);
    const __m512i nibble = _mm512_set1_epi8(15);
    return {_mm512_and_si512(raw, nibble), _mm512_andnot_si512(nibble, raw)};
  }
};

struct Q6K : BlockTiles<36> {
  static constexpr int kBias = 32;
  static constexpr int kUnitBytes = kUnit * kTileRows * 6 / 8;
  static constexpr bool kTwoParts = true;
  static constexpr bool kTwoScales = false;
  static constexpr bool kPartMinimums = false;
  static constexpr bool kPrefetch = true;
  static constexpr int kHighShift = 0;

  VITRINE_INLINE bool has_minimum(const Tile&) { return false; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return BlockTiles::tile(weight, index, kUnitBytes);
  }

  VITRINE_INLINE Group group(Tile& tile, int64_t g) {
    const uint8_t* block = tile.scales + g / 8 * 288;
    const uint8_t* parts = block + 32 + 32 * (g % 8);
    if (g % 8 == 0) tile.super_scale[0] = load_lanes<WeightFormat::kF16>(block);
    Group group;
    group.scale = tile.super_scale[0];
    group.minimum = _mm512_setzero_ps();
    group.part_scale[0] = _mm512_cvtepi8_epi32(load_128(parts));
    group.part_scale[1] = _mm512_cvtepi8_epi32(load_128(parts + 16));
    // -32 * (p0 * first_half + p1 * (whole - first_half)), as words for whole and first_half.
    const __m512i whole = _mm512_slli_epi32(group.part_scale[1], 5);
    const __m512i first_half =
        _mm512_slli_epi32(_mm512_sub_epi32(group.part_scale[1], group.part_scale[0]), 5);
    const __m512i negative = _mm512_sub_epi32(_mm512_setzero_si512(), whole);
    group.bias_words = words_of(negative, first_half);
    return group;
  }

  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    const Step low = nibbles(_mm512_loadu_si512(unit + 64 * s));
    const __m512i high = _mm512_loadu_si512(unit + 256 + 64 * (s / 2));
    const __m512i bits = _mm512_set1_epi8(0x30);
    // Bits 0, 2, 4, 6 of a byte begin the fours of columns; they belong at bit 4.
    const __m512i first = s % 2 == 0 ? _mm512_slli_epi16(high, 4) : high;
    const __m512i second = s % 2 == 0 ? _mm512_slli_epi16(high, 2) : _mm512_srli_epi16(high, 2);
    return {_mm512_or_si512(low.low, _mm512_and_si512(first, bits)),
            _mm512_or_si512(low.high, _mm512_and_si512(second, bits))};
  }
};

struct Mxfp4 : BlockTiles<kTileRows> {
  static constexpr int kBias = 12;
  static constexpr int kUnitBytes = kUnit * kTileRows / 2;
  static constexpr bool kTwoParts = false;
  static constexpr bool kTwoScales = false;
  static constexpr bool kPartMinimums = false;
  static constexpr bool kPrefetch = true;
  static constexpr int kHighShift = 0;

  VITRINE_INLINE bool has_minimum(const Tile&) { return false; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return BlockTiles::tile(weight, index, kUnitBytes);
  }

  VITRINE_INLINE Group group(Tile& tile, int64_t g) {
    const __m512i e = _mm512_cvtepu8_epi32(load_128(tile.scales + kTileRows * g));
    const __m512i one = _mm512_set1_epi32(1);
    // 2^(e-128); for e = 0 and 1 a denormal.
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, one), 23);
    const __m512i denormal = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    Group group;
    group.scale = _mm512_castsi512_ps(
        _mm512_mask_blend_epi32(_mm512_cmple_epu32_mask(e, one), normal, denormal));
    group.minimum = _mm512_setzero_ps();
    group.bias_words = bias_words(kBias);
    return group;
  }

  /// The values plus 12, so that they are not negative.
  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    const __m512i table = _mm512_broadcast_i32x4(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    const Step codes = nibbles(_mm512_loadu_si512(unit + 64 * s));
    return {_mm512_shuffle_epi8(table, codes.low), _mm512_shuffle_epi8(table, codes.high)};
  }
};

}  // namespace

const FormatKernels& q2k_format() {
  static constexpr FormatKernels kKernels = format_kernels<Q2K>();
  return kKernels;
}

const FormatKernels& q4k_format() {
  static constexpr FormatKernels kKernels = format_kernels<Q4K>();
  return kKernels;
}

const FormatKernels& q6k_format() {
  static constexpr FormatKernels kKernels = format_kernels<Q6K>();
  return kKernels;
}

const FormatKernels& mxfp4_format() {
  static constexpr FormatKernels kKernels = format_kernels<Mxfp4>();
  return kKernels;
}

}  // namespace vitrine::kernels::avx512
