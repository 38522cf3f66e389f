// SPDX-License-Identifier: Apache-2.0
// Block formats that are multiplied as they stand (../blocks/), as formats of formats.h.
#pragma once

#include "../blocks/list.h"
#include "block_lanes.h"
#include "formats.h"

namespace vitrine::kernels::avx2 {
namespace {

template <class Blocks>
struct AsTheyAre : BlockFormat<Blocks::kUnitBytes, Blocks::kChain, Blocks::kTwoParts> {
  static constexpr int kBias = Blocks::kBias;
  static constexpr bool kTwoScales = Blocks::kTwoScales;

  VITRINE_INLINE bool has_minimum(const Tile&) { return Blocks::kHasMinimum; }

  VITRINE_INLINE Tile tile(const Weight& weight, int64_t index) {
    Tile tile =
        AsTheyAre::tile_of(weight, index, weight.cols / Blocks::kCols * Blocks::kScaleBytes);
    tile.multiplier = weight.multiplier;
    return tile;
  }

  template <bool kSignedProducts>
  VITRINE_INLINE Group group(const Tile& tile, int64_t g, int half) {
    constexpr int kOwn = kSignedProducts ? 0 : kBias;
    const auto meaning = Blocks::template group<BlockLanes>(tile.data, tile.scales, g, half);
    Group group;
    group.scale = meaning.scale;
    group.minimum = meaning.minimum;
    if constexpr (kTwoScales) {
      group.scale = _mm256_mul_ps(group.scale, _mm256_set1_ps(tile.multiplier));
      group.minimum = _mm256_mul_ps(group.minimum, _mm256_set1_ps(tile.multiplier));
    }
    group.part_scale[0] = meaning.part[0];
    group.part_scale[1] = meaning.part[1];
    group.bias_words = bias_words(kOwn);
    if constexpr (Blocks::kTwoParts) {
      // -bias * (p0 * first_half + p1 * (whole - first_half)), as words for whole and first_half.
      const __m256i bias = _mm256_set1_epi32(-kOwn);
      const __m256i whole = _mm256_mullo_epi32(meaning.part[1], bias);
      const __m256i first = _mm256_sub_epi32(_mm256_mullo_epi32(meaning.part[0], bias), whole);
      group.bias_words = _mm256_blend_epi16(whole, _mm256_slli_epi32(first, 16), 0xaa);
    }
    return group;
  }

  VITRINE_INLINE Step step(const uint8_t* unit, int64_t g, int half, int s) {
    const auto eight = Blocks::template step<BlockLanes>(unit, g, s, half);
    return {eight.low, eight.high};
  }
};

}  // namespace
}  // namespace vitrine::kernels::avx2
