// SPDX-License-Identifier: Apache-2.0
// Block formats that are multiplied as they stand (../blocks/), as formats of quantized.h.
#pragma once

#include <type_traits>

#include "../blocks/list.h"
#include "block_lanes.h"
#include "quantized.h"

namespace vitrine::kernels::avx512 {
namespace {

template <class Blocks>
struct AsTheyAre {
  static constexpr int kBias = Blocks::kBias;
  static constexpr int kUnitBytes = Blocks::kUnitBytes;
  static constexpr bool kTwoParts = Blocks::kTwoParts;
  static constexpr bool kTwoScales = Blocks::kTwoScales;
  static constexpr bool kPartMinimums = false;
  static constexpr bool kPrefetch = true;
  static constexpr int kHighShift = 0;

  VITRINE_INLINE bool has_minimum(const Tile&) { return Blocks::kHasMinimum; }
  VITRINE_INLINE int64_t scale_bytes(const Tile&) {
    return Blocks::kScaleBytes * kUnit / Blocks::kCols;
  }
  VITRINE_INLINE int64_t offset_bytes(const Tile&) { return 0; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    return {blocks::units_of<Blocks>(weight, index),
            blocks::scales_of<Blocks>(weight, index),
            nullptr,
            weight.scale_format,
            OffsetFormat::kNone,
            {},
            weight.multiplier};
  }

  VITRINE_INLINE Group group(const Tile& tile, int64_t g) {
    const auto meaning = Blocks::template group<BlockLanes>(tile.data, tile.scales, g, 0);
    Group group;
    group.scale = meaning.scale;
    group.minimum = meaning.minimum;
    if constexpr (kTwoScales) {
      group.scale = _mm512_mul_ps(group.scale, _mm512_set1_ps(tile.multiplier));
      group.minimum = _mm512_mul_ps(group.minimum, _mm512_set1_ps(tile.multiplier));
    }
    group.part_scale[0] = meaning.part[0];
    group.part_scale[1] = meaning.part[1];
    group.bias_words = bias_words(kBias);
    if constexpr (kTwoParts) {
      // -bias * (p0 * first_half + p1 * (whole - first_half)), as words for whole and first_half.
      const __m512i bias = _mm512_set1_epi32(-kBias);
      const __m512i whole = _mm512_mullo_epi32(meaning.part[1], bias);
      const __m512i first = _mm512_mullo_epi32(meaning.part[0], bias);
      group.bias_words = words_of(whole, _mm512_sub_epi32(first, whole));
    }
    return group;
  }

  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t g, int s) {
    const auto eight = Blocks::template step<BlockLanes>(unit, g, s, 0);
    return {eight.low, eight.high};
  }
};

/// A tile that was decoded: bytes, and what its groups mean.
template <int kUnsignedBias, bool kParts, bool kScales, bool kMinimum>
struct Decoded {
  static constexpr int kBias = kUnsignedBias;
  static constexpr int kUnitBytes = kUnit * kTileRows;
  static constexpr bool kTwoParts = kParts;
  static constexpr bool kTwoScales = kScales;
  static constexpr bool kPartMinimums = false;
  static constexpr bool kPrefetch = false;
  static constexpr int kHighShift = 0;

  VITRINE_INLINE bool has_minimum(const Tile&) { return kMinimum; }
  VITRINE_INLINE int64_t scale_bytes(const Tile&) { return 0; }
  VITRINE_INLINE int64_t offset_bytes(const Tile&) { return 0; }
  VITRINE_INLINE Tile tile(const Weight& weight, int64_t) {
    return {static_cast<const uint8_t*>(weight.data),
            static_cast<const uint8_t*>(weight.scales),
            nullptr,
            weight.scale_format,
            OffsetFormat::kNone,
            {},
            1.0f};
  }
  VITRINE_INLINE Group group(const Tile& tile, int64_t g) {
    return reinterpret_cast<const Group*>(tile.scales)[g];
  }
  template <bool kShifted>
  VITRINE_INLINE Step step(const uint8_t* unit, int64_t, int s) {
    return {_mm512_load_si512(unit + 128 * s), _mm512_load_si512(unit + 128 * s + 64)};
  }
};

template <class Whole>
inline constexpr DotsFunction kDecodedDots[5] = {tile_dots<Whole, 1, 1>, tile_dots<Whole, 1, 2>,
                                                 tile_dots<Whole, 1, 3>, tile_dots<Whole, 1, 4>,
                                                 tile_dots<Whole, 1, 8>};

template <class Format>
void decode_tile(const Weight& weight, int64_t index, int8_t* numbers, Group* groups) {
  const Tile tile = Format::tile(weight, index);
  const uint8_t* data = tile.data;
  for (int64_t g = 0; g < weight.cols / kUnit; ++g, data += Format::kUnitBytes) {
    groups[g] = Format::group(tile, g);
#pragma GCC unroll 4
    for (int s = 0; s < kUnit / 8; ++s, numbers += 128) {
      const Step step = Format::template step<false>(data, g, s);
      _mm512_store_si512(numbers, step.low);
      _mm512_store_si512(numbers + 64, step.high);
    }
  }
}

template <class Blocks>
constexpr FormatKernels block_kernels() {
  using Format = AsTheyAre<Blocks>;
  FormatKernels kernels = {
      {tile_dots<Format, 1, 1>, tile_dots<Format, 1, 2>, tile_dots<Format, 1, 3>,
       tile_dots<Format, 1, 4>, tile_dots<Format, 1, 8>},
      {nullptr, nullptr, nullptr, nullptr, nullptr},
      unpack_tile<Format>};
  // A book is worth looking up once; other numbers are decoded as fast as bytes are loaded.
  if constexpr (std::is_base_of_v<blocks::BytesOfABook, Blocks>) {
    kernels.decode = decode_tile<Format>;
    kernels.decoded_tile = kDecodedDots<
        Decoded<Blocks::kBias, Blocks::kTwoParts, Blocks::kTwoScales, Blocks::kHasMinimum>>;
  }
  return kernels;
}

/// The kernels of one of these formats, or null.
template <class... Formats>
const FormatKernels* find_block_kernels(BlockFormat format, blocks::FormatList<Formats...> list) {
  const FormatKernels* found = nullptr;
  blocks::with_format(format, list, [&]<class Blocks>() {
    static constexpr FormatKernels kKernels = block_kernels<Blocks>();
    found = &kKernels;
  });
  return found;
}

}  // namespace
}  // namespace vitrine::kernels::avx512
