// SPDX-License-Identifier: Apache-2.0
// One warp's products of a chunk: its row tiles' 128 columns with all tokens of the block.
#pragma once

#include "kernels/cuda/linear/fragments.h"
#include "kernels/cuda/linear/product_arguments.h"

namespace vitrine::kernels::cuda {

/// Initial bits of an integer sum: as a float, 1.5 * 2^23 plus the sum, where |sum| < 2^22. (The
/// largest is 255 * 127 * 128.)
inline constexpr uint32_t kMagicBits = 0x4b400000u;
inline constexpr float kMagic = 12582912.0f;

/// One term of a chain.
struct alignas(8) Term {
  float x, y;
};

/// The running sums of a thread; with slices of K, where its terms go instead.
template <typename Shape>
struct Chains {
  float sum[Shape::kRowTiles][Shape::kTokenTiles][4];
  Term* exchange;  // this warp's [term of the chunk][row tile][row][token]
  bool has_token;  // the first of this thread's two
};

/// Adds a term to the chains of a thread's four outputs, or leaves it where the block adds them.
template <typename Shape>
VITRINE_DEVICE void add_terms(Chains<Shape>& chains, int term, int r, int n, const float (&x)[4],
                              const float (&y)[4]) {
  if constexpr (Shape::kSlices == 1) {
    for (int i = 0; i < 4; ++i) chains.sum[r][n][i] = fma_rn(x[i], y[i], chains.sum[r][n][i]);
  } else {
    const int g = lane_index() / 4, token = lane_index() % 4 * 2;
    if (!chains.has_token) return;
    Term* terms = chains.exchange + (term * Shape::kRowTiles + r) * 16 * Shape::kTokens + token;
    store16(terms + g * Shape::kTokens,
            {float_bits(x[0]), float_bits(y[0]), float_bits(x[1]), float_bits(y[1])});
    store16(terms + (g + 8) * Shape::kTokens,
            {float_bits(x[2]), float_bits(y[2]), float_bits(x[3]), float_bits(y[3])});
  }
}

/// A fragment's numbers in one half of its 32 columns: lanes 0 and 1 of four have the first 16.
VITRINE_DEVICE uint32_t half_mask(int half) {
  return lane_index() % 4 / 2 == half ? 0xffffffffu : 0u;
}

/// The two halves of a block of 32 columns apart, each times its integer scale:
/// x = float(Σ s * Σ q * a), of at most 24 bits.
template <PackedKind kKind>
VITRINE_DEVICE void multiply_parts(const PackedLayout& layout, const uint8_t* chunk, int group,
                                   const uint32_t (&a)[4], const uint32_t (&b)[2], float (&x)[4]) {
  int32_t parts[2][2], sums[2][4] = {};
  load_part_scales<kKind>(layout, chunk, group, parts);
  VITRINE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const uint32_t mask = half_mask(half);
    const uint32_t own[4] = {a[0] & mask, a[1] & mask, a[2] & mask, a[3] & mask};
    mma_s8_m16n8k32(sums[half], own, b, sums[half]);
  }
  for (int i = 0; i < 4; ++i) {
    x[i] = static_cast<float>(parts[i / 2][0] * sums[0][i] + parts[i / 2][1] * sums[1][i]);
  }
}

/// The minimums of the two halves, each times the sum of its activations: x = float(-Σ m * Σ a).
/// That of the first half is a product with ones.
VITRINE_DEVICE void multiply_part_minimums(const PackedLayout& layout, const uint8_t* chunk,
                                           int group, const GroupFactor (&factor)[2],
                                           const uint32_t (&b)[2], float (&x)[4]) {
  int32_t parts[2][2], first[4] = {};
  load_part_minimums(layout, chunk, group, parts);
  const uint32_t one = 0x01010101u & half_mask(0);
  const uint32_t ones[4] = {one, one, one, one};
  mma_s8_m16n8k32(first, ones, b, first);
  for (int i = 0; i < 4; ++i) {
    const int32_t second = factor[i % 2].sum - first[i];
    x[i] = static_cast<float>(-(parts[i / 2][0] * first[i] + parts[i / 2][1] * second));
  }
}

/// Integer sums of each group, then its term. `tokens` are the chunk's records in shared memory.
template <typename Shape>
VITRINE_DEVICE void multiply_int8(const PackedLayout& layout, const uint8_t* chunks,
                                  const uint8_t* tokens, int groups, Chains<Shape>& chains) {
  const int g = lane_index() / 4, t = lane_index() % 4;
  const int blocks_per_group = layout.group_size / 32;
  const bool has_minimum = layout.offset_format > OffsetFormat::kZeroPoint;
  ByteFragments a[Shape::kRowTiles];
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    load_fragments<Shape::kKind>(chunks + r * layout.chunk_bytes, a[r]);
  }
  VITRINE_UNROLL
  for (int n = 0; n < Shape::kTokenTiles; ++n) {
    const uint8_t* own = tokens + (8 * n + g) * Shape::kTokenStride + 8 * t;
    const uint8_t* factors = tokens + (8 * n + 2 * t) * Shape::kTokenStride + kRecordCols;
    GroupFactor factor[2] = {};
    int32_t sums[Shape::kRowTiles][4] = {};
    VITRINE_UNROLL
    for (int block = 0; block < 4; ++block) {
      const int group = block / blocks_per_group;
      if (group >= groups) break;
      if (block % blocks_per_group == 0) {
        for (int i = 0; i < 2; ++i) {
          const Words2 words = load8(factors + i * Shape::kTokenStride + 8 * group);
          factor[i] = {bits_float(words.x), static_cast<int32_t>(words.y)};
        }
        for (int r = 0; r < Shape::kRowTiles; ++r) {
          int32_t bias[2];
          load_biases<Shape::kKind>(layout, chunks + r * layout.chunk_bytes, group, bias);
          for (int i = 0; i < 4; ++i) {
            sums[r][i] = static_cast<int32_t>(kMagicBits) - bias[i / 2] * factor[i % 2].sum;
          }
        }
      }
      const Words2 words = load8(own + 32 * block);
      const uint32_t b[2] = {words.x, words.y};
      if constexpr (!has_parts(Shape::kKind)) {
        for (int r = 0; r < Shape::kRowTiles; ++r) {
          mma_s8_m16n8k32(sums[r], a[r][block], b, sums[r]);
        }
      }
      if ((block + 1) % blocks_per_group != 0) continue;
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        const uint8_t* chunk = chunks + r * layout.chunk_bytes;
        float scale[2], minimum[2], x[4], y[4];
        if constexpr (Shape::kKind == PackedKind::kQ2K) {
          load_q2k_scales(layout, chunk, scale, minimum);
        } else {
          load_scales<Shape::kKind>(layout, chunk, group, scale);
        }
        for (int i = 0; i < 4; ++i) {
          x[i] = bits_float(static_cast<uint32_t>(sums[r][i])) - kMagic;
          y[i] = scale[i / 2] * factor[i % 2].scale;
        }
        if constexpr (has_parts(Shape::kKind)) {
          multiply_parts<Shape::kKind>(layout, chunk, group, a[r][block], b, x);
        }
        add_terms(chains, has_minimum ? 2 * group : group, r, n, x, y);
        if (!has_minimum) continue;
        if constexpr (Shape::kKind == PackedKind::kQ2K) {
          multiply_part_minimums(layout, chunk, group, factor, b, x);
          for (int i = 0; i < 4; ++i) y[i] = minimum[i / 2] * factor[i % 2].scale;
        } else {
          load_minimums(layout, chunk, group, minimum);
          for (int i = 0; i < 4; ++i) {
            x[i] = minimum[i / 2];
            y[i] = static_cast<float>(factor[i % 2].sum) * factor[i % 2].scale;
          }
        }
        add_terms(chains, 2 * group + 1, r, n, x, y);
      }
    }
  }
}

/// Float sums of each group (a chunk) by the tensor core, from +0, of E4M3 weights and activations,
/// then its term.
template <typename Shape>
VITRINE_DEVICE void multiply_e4m3(const PackedLayout& layout, const uint8_t* chunks,
                                  const uint8_t* tokens, int groups, Chains<Shape>& chains) {
  if (groups == 0) return;
  const int g = lane_index() / 4, t = lane_index() % 4;
  ByteFragments a[Shape::kRowTiles];
  float scale[Shape::kRowTiles][2];
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    load_fragments<Shape::kKind>(chunks + r * layout.chunk_bytes, a[r]);
    load_scales<Shape::kKind>(layout, chunks + r * layout.chunk_bytes, 0, scale[r]);
  }
  VITRINE_UNROLL
  for (int n = 0; n < Shape::kTokenTiles; ++n) {
    const uint8_t* own = tokens + (8 * n + g) * Shape::kTokenStride + 8 * t;
    const uint8_t* factors = tokens + (8 * n + 2 * t) * Shape::kTokenStride + kRecordCols;
    float token_scale[2], sums[Shape::kRowTiles][4] = {};
    for (int i = 0; i < 2; ++i) {
      token_scale[i] = bits_float(load8(factors + i * Shape::kTokenStride).x);
    }
    VITRINE_UNROLL
    for (int block = 0; block < 4; ++block) {
      const Words2 words = load8(own + 32 * block);
      const uint32_t b[2] = {words.x, words.y};
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        mma_e4m3_m16n8k32(sums[r], a[r][block], b, sums[r]);
      }
    }
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      float y[4];
      for (int i = 0; i < 4; ++i) y[i] = scale[r][i / 2] * token_scale[i % 2];
      add_terms(chains, 0, r, n, sums[r], y);
    }
  }
}

/// The fragments of half of 32 columns as bf16 numbers (kBF16: as stored).
template <PackedKind kKind>
VITRINE_DEVICE void widen_fragments(const uint32_t (&bytes)[4], int half, const uint32_t (&bias)[2],
                                    bool has_bias, uint32_t (&a)[4]) {
  for (int i = 0; i < 4; ++i) {  // rows g, g + 8 of the first two columns, then of the last two
    const uint32_t four = bytes[2 * half + i % 2];
    if constexpr (kKind == PackedKind::kE4M3) {
      a[i] = bf16_of_e4m3(four, i / 2);
    } else if constexpr (kKind == PackedKind::kInt8) {
      a[i] = bf16_of_signed(four, i / 2);
      if (has_bias) a[i] = subtract_bf16_pairs(a[i], bias[i % 2]);
    } else {
      a[i] = subtract_bf16_pairs(bf16_above_128(four, i / 2), bias[i % 2]);
    }
  }
}

/// Float sums of each group by the tensor core, from +0, then its term: (sum, scale), and where
/// there is a minimum (minimum, sum of the activations), which a product with ones makes.
template <typename Shape>
VITRINE_DEVICE void multiply_bf16(const PackedLayout& layout, const uint8_t* chunks,
                                  const uint8_t* tokens, int groups, Chains<Shape>& chains) {
  const int g = lane_index() / 4, t = lane_index() % 4;
  const int blocks_per_group = layout.group_size / 32;
  const bool has_minimum = layout.offset_format > OffsetFormat::kZeroPoint;
  constexpr uint32_t kOnes[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  VITRINE_UNROLL
  for (int r = 0; r < Shape::kRowTiles; ++r) {
    const uint8_t* chunk = chunks + r * layout.chunk_bytes;
    uint32_t a[8][4];  // by half of 32 columns
    if constexpr (Shape::kKind == PackedKind::kBF16) {
      for (int i = 0; i < 8; ++i) {
        const Words4 words = load16(chunk + kPackedUnitBytes * i + 16 * lane_index());
        a[i][0] = words.x;
        a[i][1] = words.y;
        a[i][2] = words.z;
        a[i][3] = words.w;
      }
    } else {
      ByteFragments bytes;
      load_fragments<Shape::kKind>(chunk, bytes);
      uint32_t pairs[2] = {};
      for (int i = 0; i < 8; ++i) {
        if (i % (2 * blocks_per_group) == 0) {
          int32_t bias[2];
          load_biases<Shape::kKind>(layout, chunk, i / (2 * blocks_per_group), bias);
          constexpr int kAbove = Shape::kKind == PackedKind::kInt8 ? 0 : 128;
          for (int j = 0; j < 2; ++j) pairs[j] = bf16_pair(kAbove + bias[j]);
        }
        widen_fragments<Shape::kKind>(bytes[i / 2], i % 2, pairs,
                                      layout.offset_format != OffsetFormat::kNone, a[i]);
      }
    }
    VITRINE_UNROLL
    for (int n = 0; n < Shape::kTokenTiles; ++n) {
      const uint8_t* own = tokens + (8 * n + g) * Shape::kTokenStride + 16 * t;
      float sums[4] = {}, ones[4] = {};
      VITRINE_UNROLL
      for (int block = 0; block < 4; ++block) {
        const int group = block / blocks_per_group;
        if (group >= groups) break;
        if (block % blocks_per_group == 0) {
          for (int i = 0; i < 4; ++i) sums[i] = ones[i] = 0.0f;
        }
        const Words4 words = load16(own + 64 * block);
        const uint32_t b[2][2] = {{words.x, words.y}, {words.z, words.w}};
        for (int half = 0; half < 2; ++half) {
          mma_bf16_m16n8k16(sums, a[2 * block + half], b[half], sums);
          if (has_minimum) mma_bf16_m16n8k16(ones, kOnes, b[half], ones);
        }
        if ((block + 1) % blocks_per_group != 0) continue;
        float scale[2] = {1.0f, 1.0f}, y[4], x[4];
        if constexpr (Shape::kKind != PackedKind::kBF16) {
          load_scales<Shape::kKind>(layout, chunk, group, scale);
        }
        for (int i = 0; i < 4; ++i) y[i] = scale[i / 2];
        add_terms(chains, has_minimum ? 2 * group : group, r, n, sums, y);
        if (!has_minimum) continue;
        float minimum[2];
        load_minimums(layout, chunk, group, minimum);
        for (int i = 0; i < 4; ++i) x[i] = minimum[i / 2];
        add_terms(chains, 2 * group + 1, r, n, x, ones);
      }
    }
  }
}

}  // namespace vitrine::kernels::cuda
