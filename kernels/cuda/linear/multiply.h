// SPDX-License-Identifier: Apache-2.0
// One warp's products of a chunk: its row tiles' 128 columns with all of its tokens.
//
// `tokens` gives a lane's part of the chunk's activations, from registers or shared memory:
//   values8(n, block)         8 bytes of token 8n + g, in the 32 columns of a block
//   values16(n, block)        the same of bf16 rows, 16 bytes
//   factor(n, i, group)       what stands beside the bytes of token 8n + 2t + i
// `add(term, r, n, x, y)` takes a term of the chain of four outputs: rows g and g + 8 of row tile
// r, tokens 8n + 2t and the next; fma(x[i], y[i], sum), terms in ascending order.
#pragma once

#include "kernels/cuda/linear/activation_rows.h"
#include "kernels/cuda/linear/packing.h"

namespace vitrine::kernels::cuda {

/// Initial bits of an integer sum: as a float, 1.5 * 2^23 plus the sum, where |sum| < 2^22. (The
/// largest is 255 * 127 * 128.)
inline constexpr uint32_t kMagicBits = 0x4b400000u;
inline constexpr float kMagic = 12582912.0f;

/// Terms of a chunk: one or two a group.
VITRINE_DEVICE int chunk_terms(const PackedLayout& layout, int groups) {
  return has_minimum(layout) ? 2 * groups : groups;
}

/// A fragment's numbers in one half of its 32 columns: lanes 0 and 1 of four have the first 16.
VITRINE_DEVICE uint32_t half_mask(int half) {
  return lane_index() % 4 / 2 == half ? 0xffffffffu : 0u;
}

/// The two halves of a block of 32 columns apart, each times its integer scale:
/// x = float(Σ s * Σ q * a), of at most 24 bits.
template <typename P>
VITRINE_DEVICE void multiply_parts(const ChunkWords<P>& words, int group, const uint32_t (&a)[4],
                                   const uint32_t (&b)[2], float (&x)[4]) {
  int32_t sums[2][4] = {};
  VITRINE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t mask = half_mask(half);
    const uint32_t own[4] = {a[0] & mask, a[1] & mask, a[2] & mask, a[3] & mask};
    mma_s8_m16n8k32(sums[half], own, b, sums[half]);
  }
  VITRINE_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = static_cast<float>(part_scale_of<P>(words, group, i / 2, 0) * sums[0][i] +
                              part_scale_of<P>(words, group, i / 2, 1) * sums[1][i]);
  }
}

/// The minimums of the two halves, each times the sum of its activations: x = float(-Σ m * Σ a).
/// That of the first half is a product with ones.
template <typename P>
VITRINE_DEVICE void multiply_part_minimums(const ChunkWords<P>& words, int group,
                                           const GroupFactor (&factor)[2], const uint32_t (&b)[2],
                                           float (&x)[4]) {
  int32_t first[4] = {};
  const uint32_t one = 0x01010101u & half_mask(0);
  const uint32_t ones[4] = {one, one, one, one};
  mma_s8_m16n8k32(first, ones, b, first);
  VITRINE_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int32_t second = factor[i % 2].sum - first[i];
    x[i] = static_cast<float>(-(part_minimum_of<P>(words, group, i / 2, 0) * first[i] +
                                part_minimum_of<P>(words, group, i / 2, 1) * second));
  }
}

/// Groups of 32 columns whose halves have integer scales.
template <typename P, int kRowTiles, int kTokenTiles, typename Tokens, typename Add>
VITRINE_DEVICE void multiply_parted(const PackedLayout& layout,
                                    const ChunkWords<P> (&weights)[kRowTiles], const Tokens& tokens,
                                    const Add& add) {
  constexpr bool kHasMinimum = P::kKind == PackedKind::kQ2K;
  float scales[kRowTiles][P::kGroups][2], minimums[kRowTiles][P::kGroups][2];
  VITRINE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    scales_of<P>(layout, weights[r], scales[r]);
    if constexpr (kHasMinimum) minimums_of<P>(layout, weights[r], minimums[r]);
  }
  VITRINE_UNROLL
  for (int group = 0; group < 4; ++group) {
    VITRINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      uint32_t a[4];
      byte_fragment(weights[r], group, a);
      VITRINE_UNROLL
      for (int n = 0; n < kTokenTiles; ++n) {
        const Words2 words = tokens.values8(n, group);
        const uint32_t b[2] = {words.x, words.y};
        const GroupFactor factor[2] = {tokens.factor(n, 0, group), tokens.factor(n, 1, group)};
        float x[4], y[4];
        multiply_parts<P>(weights[r], group, a, b, x);
        for (int i = 0; i < 4; ++i) y[i] = scales[r][group][i / 2] * factor[i % 2].scale;
        add(kHasMinimum ? 2 * group : group, r, n, x, y);
        if constexpr (kHasMinimum) {
          multiply_part_minimums<P>(weights[r], group, factor, b, x);
          for (int i = 0; i < 4; ++i) {
            y[i] = minimums[r][group][i / 2] * factor[i % 2].scale;
          }
          add(2 * group + 1, r, n, x, y);
        }
      }
    }
  }
}

/// Integer sums of each group, then its term.
template <typename P, int kRowTiles, int kTokenTiles, typename Tokens, typename Add>
VITRINE_DEVICE void multiply_int8(const PackedLayout& layout,
                                  const ChunkWords<P> (&weights)[kRowTiles], const Tokens& tokens,
                                  const Add& add) {
  const bool minimum = has_minimum(layout);
  float scales[kRowTiles][P::kGroups][2];
  VITRINE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) scales_of<P>(layout, weights[r], scales[r]);
  VITRINE_UNROLL
  for (int group = 0; group < P::kGroups; ++group) {
    int32_t sums[kRowTiles][kTokenTiles][4];
    VITRINE_UNROLL
    for (auto& tile : sums) {
      VITRINE_UNROLL
      for (auto& four : tile) {
        for (int32_t& sum : four) sum = static_cast<int32_t>(kMagicBits);
      }
    }
    VITRINE_UNROLL
    for (int i = 0; i < P::kGroupBlocks; ++i) {
      const int block = group * P::kGroupBlocks + i;
      uint32_t a[kRowTiles][4];
      VITRINE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) byte_fragment(weights[r], block, a[r]);
      VITRINE_UNROLL
      for (int n = 0; n < kTokenTiles; ++n) {
        const Words2 words = tokens.values8(n, block);
        const uint32_t b[2] = {words.x, words.y};
        VITRINE_UNROLL
        for (int r = 0; r < kRowTiles; ++r) mma_s8_m16n8k32(sums[r][n], a[r], b, sums[r][n]);
      }
    }
    int32_t bias[kRowTiles][2];
    VITRINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      for (int i = 0; i < 2; ++i) bias[r][i] = bias_of<P>(layout, weights[r], group, i);
    }
    VITRINE_UNROLL
    for (int n = 0; n < kTokenTiles; ++n) {
      const GroupFactor factor[2] = {tokens.factor(n, 0, group), tokens.factor(n, 1, group)};
      VITRINE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        float x[4], y[4];
        for (int i = 0; i < 4; ++i) {
          const int32_t sum = sums[r][n][i] - bias[r][i / 2] * factor[i % 2].sum;
          x[i] = bits_float(static_cast<uint32_t>(sum)) - kMagic;
          y[i] = scales[r][group][i / 2] * factor[i % 2].scale;
        }
        add(minimum ? 2 * group : group, r, n, x, y);
      }
    }
    if constexpr (P::kIsInteger) {
      if (!minimum) continue;
      VITRINE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        float minimums[P::kGroups][2];
        minimums_of<P>(layout, weights[r], minimums);
        VITRINE_UNROLL
        for (int n = 0; n < kTokenTiles; ++n) {
          float x[4], y[4];
          for (int i = 0; i < 4; ++i) {
            const GroupFactor factor = tokens.factor(n, i % 2, group);
            x[i] = minimums[group][i / 2];
            y[i] = static_cast<float>(factor.sum) * factor.scale;
          }
          add(2 * group + 1, r, n, x, y);
        }
      }
    }
  }
}

/// Float sums of each group (a chunk) by the tensor core, from +0, of E4M3 weights and activations,
/// then its term.
template <typename P, int kRowTiles, int kTokenTiles, typename Tokens, typename Add>
VITRINE_DEVICE void multiply_e4m3(const PackedLayout& layout,
                                  const ChunkWords<P> (&weights)[kRowTiles], const Tokens& tokens,
                                  const Add& add) {
  float sums[kRowTiles][kTokenTiles][4] = {};
  VITRINE_UNROLL
  for (int block = 0; block < 4; ++block) {
    uint32_t a[kRowTiles][4];
    VITRINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) byte_fragment(weights[r], block, a[r]);
    VITRINE_UNROLL
    for (int n = 0; n < kTokenTiles; ++n) {
      const Words2 words = tokens.values8(n, block);
      const uint32_t b[2] = {words.x, words.y};
      VITRINE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) mma_e4m3_m16n8k32(sums[r][n], a[r], b, sums[r][n]);
    }
  }
  VITRINE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) {
    float scales[1][2];
    scales_of<P>(layout, weights[r], scales);
    VITRINE_UNROLL
    for (int n = 0; n < kTokenTiles; ++n) {
      float y[4];
      for (int i = 0; i < 4; ++i) y[i] = scales[0][i / 2] * tokens.factor(n, i % 2, 0).scale;
      add(0, r, n, sums[r][n], y);
    }
  }
}

/// Float sums of each group by the tensor core, from +0, then its term: (sum, scale), and where
/// there is a minimum (minimum, sum of the activations), which a product with ones makes.
template <typename P, int kRowTiles, int kTokenTiles, typename Tokens, typename Add>
VITRINE_DEVICE void multiply_bf16(const PackedLayout& layout,
                                  const ChunkWords<P> (&weights)[kRowTiles], const Tokens& tokens,
                                  const Add& add) {
  const bool minimum = P::kIsInteger && has_minimum(layout);
  float scales[kRowTiles][P::kGroups][2];
  VITRINE_UNROLL
  for (int r = 0; r < kRowTiles; ++r) scales_of<P>(layout, weights[r], scales[r]);
  VITRINE_UNROLL
  for (int group = 0; group < P::kGroups; ++group) {
    uint32_t bias[kRowTiles][2] = {};
    if constexpr (P::kKind != PackedKind::kBF16 && P::kKind != PackedKind::kE4M3) {
      VITRINE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) bf16_biases<P>(layout, weights[r], group, bias[r]);
    }
    float sums[kRowTiles][kTokenTiles][4] = {};
    VITRINE_UNROLL
    for (int i = 0; i < P::kGroupBlocks; ++i) {
      const int block = group * P::kGroupBlocks + i;
      uint32_t a[kRowTiles][2][4];
      if constexpr (kTokenTiles >= 4) keep_order();  // as many loads at once as registers hold
      VITRINE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        bf16_fragments<P>(layout, weights[r], block, bias[r], a[r]);
      }
      VITRINE_UNROLL
      for (int n = 0; n < kTokenTiles; ++n) {
        const Words4 words = tokens.values16(n, block);
        const uint32_t b[2][2] = {{words.x, words.y}, {words.z, words.w}};
        VITRINE_UNROLL
        for (int half = 0; half < 2; ++half) {
          VITRINE_UNROLL
          for (int r = 0; r < kRowTiles; ++r) {
            mma_bf16_m16n8k16(sums[r][n], a[r][half], b[half], sums[r][n]);
          }
        }
      }
    }
    VITRINE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) {
      const float* scale = scales[r][group];
      const float y[4] = {scale[0], scale[0], scale[1], scale[1]};
      VITRINE_UNROLL
      for (int n = 0; n < kTokenTiles; ++n) {
        add(minimum ? 2 * group : group, r, n, sums[r][n], y);
      }
    }
    if constexpr (P::kIsInteger) {
      if (!minimum) continue;
      constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
      VITRINE_UNROLL
      for (int n = 0; n < kTokenTiles; ++n) {
        float ones[4] = {};
        VITRINE_UNROLL
        for (int i = 0; i < P::kGroupBlocks; ++i) {
          const Words4 words = tokens.values16(n, group * P::kGroupBlocks + i);
          const uint32_t b[2][2] = {{words.x, words.y}, {words.z, words.w}};
          for (int half = 0; half < 2; ++half) mma_bf16_m16n8k16(ones, kOnes, b[half], ones);
        }
        VITRINE_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          float minimums[P::kGroups][2];
          minimums_of<P>(layout, weights[r], minimums);
          const float* own = minimums[group];
          const float x[4] = {own[0], own[0], own[1], own[1]};
          add(2 * group + 1, r, n, x, ones);
        }
      }
    }
  }
}

/// The products of one chunk, by the kind of activations.
template <typename P, ActivationFormat kActivations, int kRowTiles, int kTokenTiles,
          typename Tokens, typename Add>
VITRINE_DEVICE void multiply_chunk(const PackedLayout& layout,
                                   const ChunkWords<P> (&weights)[kRowTiles], const Tokens& tokens,
                                   const Add& add) {
  if constexpr (kActivations == ActivationFormat::kBF16) {
    multiply_bf16<P, kRowTiles, kTokenTiles>(layout, weights, tokens, add);
  } else if constexpr (kActivations == ActivationFormat::kE4M3) {
    multiply_e4m3<P, kRowTiles, kTokenTiles>(layout, weights, tokens, add);
  } else if constexpr (has_parts(P::kKind)) {
    multiply_parted<P, kRowTiles, kTokenTiles>(layout, weights, tokens, add);
  } else {
    multiply_int8<P, kRowTiles, kTokenTiles>(layout, weights, tokens, add);
  }
}

}  // namespace vitrine::kernels::cuda
