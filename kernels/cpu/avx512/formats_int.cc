// SPDX-License-Identifier: Apache-2.0
// int8, int4 and int3 weights with a scale per group, and without or with zero points or minimums.
#include "quantized.h"

namespace vitrine::kernels::avx512 {
namespace {

VITRINE_INLINE __m512 load_scales(ScaleFormat format, const uint8_t* scales, int64_t group) {
  switch (format) {
    case ScaleFormat::kF16: return load_lanes<WeightFormat::kF16>(scales + group * 32);
    case ScaleFormat::kBF16: return load_lanes<WeightFormat::kBF16>(scales + group * 32);
    default: return load_lanes<WeightFormat::kF32>(scales + group * 64);
  }
}

VITRINE_INLINE __m512 load_minimums(OffsetFormat format, const uint8_t* offsets, int64_t group) {
  switch (format) {
    case OffsetFormat::kF16: return load_lanes<WeightFormat::kF16>(offsets + group * 32);
    case OffsetFormat::kBF16: return load_lanes<WeightFormat::kBF16>(offsets + group * 32);
    default: return load_lanes<WeightFormat::kF32>(offsets + group * 64);
  }
}

template <int kUnsignedBias>
struct IntegerFormat {
  static constexpr int kBias = kUnsignedBias;
  static constexpr bool kTwoParts = false;
  static constexpr bool kTwoScales = false;
  static constexpr bool kPartMinimums = false;

  VITRINE_INLINE bool has_minimum(const Tile& tile) {
    return tile.offset_format > OffsetFormat::kZeroPoint;
  }

  VITRINE_INLINE Group group(const Tile& tile, int64_t g) {
    Group group;
    group.scale = load_scales(tile.scale_format, tile.scales, g);
    group.bias_words = bias_words(kBias);
    group.minimum = _mm512_setzero_ps();
    if (tile.offset_format != OffsetFormat::kNone) {
      if (tile.offset_format == OffsetFormat::kZeroPoint) {
        const __m512i zero_points = _mm512_cvtepi8_epi32(load_128(tile.offsets + 16 * g));
        const __m512i bias = _mm512_sub_epi32(_mm512_set1_epi32(-kBias), zero_points);
        group.bias_words = _mm512_and_si512(bias, _mm512_set1_epi32(0xffff));
      } else {
        group.bias_words = _mm512_setzero_si512();
        group.minimum = load_minimums(tile.offset_format, tile.offsets, g);
      }
    }
    return group;
  }

  /// Bytes of a group's scales, and of its offsets.
  VITRINE_INLINE int64_t scale_bytes(const Tile& tile) { return scale_bytes(tile.scale_format); }
  VITRINE_INLINE int64_t offset_bytes(const Tile& tile) { return offset_bytes(tile.offset_format); }
  VITRINE_INLINE int64_t scale_bytes(ScaleFormat format) { return kTileRows * scale_size(format); }
  VITRINE_INLINE int64_t offset_bytes(OffsetFormat format) {
    return kTileRows * (format == OffsetFormat::kZeroPoint ? 1
                        : format == OffsetFormat::kF32     ? 4
                                                           : 2);
  }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index, int64_t unit_bytes) {
    const int64_t first = index * group_count(weight.cols, weight.group_size);
    const auto* offsets = static_cast<const uint8_t*>(weight.offsets);
    return {static_cast<const uint8_t*>(weight.data) +
                index * (padded_cols(weight.cols) / kUnit) * unit_bytes,
            static_cast<const uint8_t*>(weight.scales) + first * scale_bytes(weight.scale_format),
            offsets != nullptr ? offsets + first * offset_bytes(weight.offset_format) : nullptr,
            weight.scale_format,
            weight.offset_format,
            {}};
  }
};

struct Int4 : IntegerFormat<8> {
  static constexpr int kUnitBytes = kUnit * kTileRows / 2;
  static constexpr bool kPrefetch = true;
  static constexpr int kHighShift = 4;

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return IntegerFormat::tile(weight, index, kUnitBytes);
  }

  /// kShifted: the high nibbles stay in the upper half of their bytes, 16 times too large.
  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    __m512i raw = _mm512_loadu_si512(unit + 64 * s);
    keep_in_register(raw);
    if constexpr (!kShifted) return nibbles(raw);
    const __m512i nibble = _mm512_set1_epi8(15);
    return {_mm512_and_si512(raw, nibble), _mm512_andnot_si512(nibble, raw)};
  }
};

struct Int3 : IntegerFormat<4> {
  static constexpr int kUnitBytes = kUnit * kTileRows * 3 / 8;
  static constexpr bool kPrefetch = true;
  static constexpr int kHighShift = 3;

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return IntegerFormat::tile(weight, index, kUnitBytes);
  }

  /// kShifted: the high four stay three bits up, 8 times too large.
  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    const __m512i three = _mm512_set1_epi8(7);
    if (s == 3) {
      const __m512i a = _mm512_loadu_si512(unit), b = _mm512_loadu_si512(unit + 64);
      const __m512i c = _mm512_loadu_si512(unit + 128);
      const __m512i low = two_and_one<3>(_mm512_srli_epi16(a, 6), _mm512_srli_epi16(c, 4));
      if constexpr (kShifted) {
        const __m512i high = two_and_one<24>(_mm512_srli_epi16(b, 3), _mm512_srli_epi16(c, 2));
        return {_mm512_and_si512(low, three), _mm512_and_si512(high, _mm512_set1_epi8(56))};
      }
      const __m512i high = two_and_one<3>(_mm512_srli_epi16(b, 6), _mm512_srli_epi16(c, 5));
      return {_mm512_and_si512(low, three), _mm512_and_si512(high, three)};
    }
    __m512i raw = _mm512_loadu_si512(unit + 64 * s);
    keep_in_register(raw);
    const __m512i high = kShifted ? _mm512_and_si512(raw, _mm512_set1_epi8(56))
                                  : _mm512_and_si512(_mm512_srli_epi16(raw, 3), three);
    return {_mm512_and_si512(raw, three), high};
  }

 private:
  /// The bits of a mask from `two`, all others from `one`.
  template <char kMask>
  VITRINE_INLINE __m512i two_and_one(__m512i two, __m512i one) {
    return _mm512_ternarylogic_epi32(_mm512_set1_epi8(kMask), two, one, 0xca);
  }
};

struct Int8 : IntegerFormat<128> {
  static constexpr int kUnitBytes = kUnit * kTileRows;
  static constexpr bool kPrefetch = false;
  static constexpr int kHighShift = 0;

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return IntegerFormat::tile(weight, index, kUnitBytes);
  }

  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    return {_mm512_loadu_si512(unit + 128 * s), _mm512_loadu_si512(unit + 128 * s + 64)};
  }
};

}  // namespace

const FormatKernels& int3_format() {
  static constexpr FormatKernels kKernels = format_kernels<Int3>();
  return kKernels;
}

const FormatKernels& int4_format() {
  static constexpr FormatKernels kKernels = format_kernels<Int4>();
  return kKernels;
}

const FormatKernels& int8_format() {
  static constexpr FormatKernels kKernels = format_kernels<Int8>();
  return kKernels;
}

}  // namespace vitrine::kernels::avx512
