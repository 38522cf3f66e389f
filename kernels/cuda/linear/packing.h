// SPDX-License-Identifier: Apache-2.0
// A chunk of a packed matrix in a lane's registers: its numbers, scales and offsets, in the order
// of packed_matrix.h. What depends on the layout alone is a constant of the kernel: a kernel that
// asks for it again in each product spends its time on that.
#pragma once

#include "kernels/cuda/linear/packed_matrix.h"
#include "kernels/cuda/linear/words.h"

namespace vitrine::kernels::cuda {

/// What a kernel knows of a layout: its kind, and the groups of a chunk.
template <PackedKind kKindOf, int kGroupsOf>
struct Packing {
  static constexpr PackedKind kKind = kKindOf;
  static constexpr int kGroups = kGroupsOf;         // of 128 columns: 1, 2 or 4
  static constexpr int kGroupBlocks = 4 / kGroups;  // blocks of 32 columns in one
  static constexpr bool kIsBytes =
      kKind == PackedKind::kInt8 || kKind == PackedKind::kQ6K || kKind == PackedKind::kE4M3;
  static constexpr bool kIsInteger =
      kKind == PackedKind::kInt4 || kKind == PackedKind::kInt3 || kKind == PackedKind::kInt8;
  /// What a stored number is too large by, where it has no minimum.
  static constexpr int kBias = kKind == PackedKind::kInt4 ? 8 : kKind == PackedKind::kInt3 ? 4 : 0;
  /// Vectors of 16 bytes that a lane has of a chunk's numbers.
  static constexpr int kUnits = kKind == PackedKind::kBF16   ? 8
                                : kKind == PackedKind::kQ2K  ? 1
                                : kKind == PackedKind::kInt3 ? 1
                                : kIsBytes                   ? 4
                                                             : 2;
  static constexpr bool kHasHighBits = kKind == PackedKind::kInt3;
  static constexpr int kNumberBytes =
      kPackedUnitBytes * kUnits + (kHasHighBits ? kHighBitBytes : 0);
  static constexpr int kScaleWords = kKind == PackedKind::kBF16    ? 0
                                     : kKind == PackedKind::kMxfp4 ? kGroups
                                     : kKind == PackedKind::kQ2K   ? kGroups
                                                                   : 2 * kGroups;
  static constexpr int kOffsetWords = kIsInteger                  ? 2 * kGroups
                                      : kKind == PackedKind::kQ6K ? kGroups
                                      : kKind == PackedKind::kQ2K ? 2
                                                                  : 0;
  static_assert(!has_parts(kKind) || kGroups == 4);
};

/// What a lane has of a chunk: rows g = lane / 4 and g + 8 of its tile.
template <typename P>
struct ChunkWords {
  Words4 numbers[P::kUnits];
  uint32_t high[P::kHasHighBits ? 2 : 1];
  uint32_t scales[P::kScaleWords > 0 ? P::kScaleWords : 1];
  uint32_t offsets[P::kOffsetWords > 0 ? P::kOffsetWords : 1];
};

/// Two floats of `entries`, those of rows g and g + 8, as they are stored: 16 bits each in the
/// first word, or a word each.
VITRINE_DEVICE void load_pair(bool is_f32, const uint8_t* entries, uint32_t (&pair)[2]) {
  const int index = lane_index() / 4;
  if (is_f32) {
    const Words2 words = load8(entries + 8 * index);
    pair[0] = words.x;
    pair[1] = words.y;
  } else {
    pair[0] = load4(entries + 4 * index);
  }
}

constexpr ScaleFormat minimum_format(OffsetFormat format) {
  return format == OffsetFormat::kF16    ? ScaleFormat::kF16
         : format == OffsetFormat::kBF16 ? ScaleFormat::kBF16
                                         : ScaleFormat::kF32;
}
/// Whether a weight is scale * u + minimum.
VITRINE_DEVICE bool has_minimum(const PackedLayout& layout) {
  return layout.offset_format > OffsetFormat::kZeroPoint;
}

/// Loads a lane's part of a chunk from shared memory.
template <typename P>
VITRINE_DEVICE void load_chunk(const PackedLayout& layout, const uint8_t* chunk,
                               ChunkWords<P>& words) {
  const int g = lane_index() / 4;
  VITRINE_UNROLL
  for (int i = 0; i < P::kUnits; ++i) {
    const uint8_t* from = chunk + kPackedUnitBytes * i + 16 * lane_index();
    words.numbers[i] = load16(from);
  }
  if constexpr (P::kHasHighBits) {
    const Words2 high = load8(chunk + kPackedUnitBytes + 8 * lane_index());
    words.high[0] = high.x;
    words.high[1] = high.y;
  }
  const uint8_t* scales = chunk + P::kNumberBytes;
  if constexpr (P::kKind == PackedKind::kMxfp4) {
    VITRINE_UNROLL
    for (int i = 0; i < P::kGroups; ++i) {
      words.scales[i] = *reinterpret_cast<const uint16_t*>(scales + 16 * i + 2 * g);
    }
  } else if constexpr (P::kKind == PackedKind::kQ2K) {
    VITRINE_UNROLL
    for (int i = 0; i < P::kGroups; ++i) words.scales[i] = load4(scales + 32 * i + 4 * g);
    VITRINE_UNROLL
    for (int i = 0; i < 2; ++i) {
      words.offsets[i] = load4(scales + 32 * P::kGroups + 32 * i + 4 * g);
    }
  } else if constexpr (P::kKind != PackedKind::kBF16) {
    const bool is_f32 = layout.scale_format == ScaleFormat::kF32;
    VITRINE_UNROLL
    for (int i = 0; i < P::kGroups; ++i) {
      uint32_t pair[2] = {};
      load_pair(is_f32, scales + i * layout.scale_bytes, pair);
      words.scales[2 * i] = pair[0];
      words.scales[2 * i + 1] = pair[1];
    }
    const uint8_t* offsets = scales + P::kGroups * layout.scale_bytes;
    if constexpr (P::kKind == PackedKind::kQ6K) {
      VITRINE_UNROLL
      for (int i = 0; i < P::kGroups; ++i) words.offsets[i] = load4(offsets + 32 * i + 4 * g);
    } else if constexpr (P::kIsInteger) {
      VITRINE_UNROLL
      for (int i = 0; i < 2 * P::kGroups; ++i) words.offsets[i] = 0;
      if (layout.offset_format == OffsetFormat::kNone) return;
      const bool is_wide = layout.offset_format == OffsetFormat::kF32;
      VITRINE_UNROLL
      for (int i = 0; i < P::kGroups; ++i) {
        uint32_t pair[2] = {};
        load_pair(is_wide, offsets + i * layout.offset_bytes, pair);
        words.offsets[2 * i] = pair[0];
        words.offsets[2 * i + 1] = pair[1];
      }
    }
  }
}

/// Pairs of floats of each group, those of rows g and g + 8, out of words as load_pair left them.
template <int kGroups>
VITRINE_DEVICE void widen_pairs(ScaleFormat format, const uint32_t* words,
                                float (&pairs)[kGroups][2]) {
  if (format == ScaleFormat::kF32) {
    VITRINE_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) pairs[i / 2][i % 2] = bits_float(words[i]);
  } else if (format == ScaleFormat::kF16) {
    VITRINE_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) {
      pairs[i / 2][i % 2] = widen_f16(static_cast<uint16_t>(words[i / 2 * 2] >> (16 * (i % 2))));
    }
  } else {
    VITRINE_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) {
      pairs[i / 2][i % 2] = widen_bf16(static_cast<uint16_t>(words[i / 2 * 2] >> (16 * (i % 2))));
    }
  }
}

/// The scales of rows g and g + 8 in each group.
template <typename P>
VITRINE_DEVICE void scales_of(const PackedLayout& layout, const ChunkWords<P>& words,
                              float (&scales)[P::kGroups][2]) {
  if constexpr (P::kKind == PackedKind::kBF16) {
    scales[0][0] = scales[0][1] = 1.0f;
  } else if constexpr (P::kKind == PackedKind::kMxfp4) {
    VITRINE_UNROLL
    for (int i = 0; i < 2 * P::kGroups; ++i) {
      const uint32_t e = words.scales[i / 2] >> (8 * (i % 2)) & 255;
      scales[i / 2][i % 2] = bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);  // 2^(e - 128)
    }
  } else if constexpr (P::kKind == PackedKind::kQ2K) {
    VITRINE_UNROLL
    for (int i = 0; i < 2 * P::kGroups; ++i) {
      scales[i / 2][i % 2] = widen_f16(static_cast<uint16_t>(words.offsets[0] >> (16 * (i % 2))));
    }
  } else {
    widen_pairs<P::kGroups>(layout.scale_format, words.scales, scales);
  }
}

/// The minimums, where the layout has them.
template <typename P>
VITRINE_DEVICE void minimums_of(const PackedLayout& layout, const ChunkWords<P>& words,
                                float (&minimums)[P::kGroups][2]) {
  if constexpr (P::kKind == PackedKind::kQ2K) {
    VITRINE_UNROLL
    for (int i = 0; i < 2 * P::kGroups; ++i) {
      minimums[i / 2][i % 2] = widen_f16(static_cast<uint16_t>(words.offsets[1] >> (16 * (i % 2))));
    }
  } else {
    widen_pairs<P::kGroups>(minimum_format(layout.offset_format), words.offsets, minimums);
  }
}

/// What to subtract from the stored numbers of a group: what is added to a number where it is
/// stored (so that it is unsigned, or a byte's), and the row's zero point.
template <typename P>
VITRINE_DEVICE int32_t bias_of(const PackedLayout& layout, const ChunkWords<P>& words, int group,
                               int i) {
  if constexpr (P::kIsInteger) {
    if (has_minimum(layout)) return P::kBias != 0 ? 0 : -128;
    const auto point = static_cast<int16_t>(words.offsets[2 * group] >> (16 * i));
    return P::kBias + point;
  }
  return P::kKind == PackedKind::kMxfp4 ? 12 : 0;
}

/// The integer scales of kQ6K and kQ2K for a half of a group of 32 columns.
template <typename P>
VITRINE_DEVICE int32_t part_scale_of(const ChunkWords<P>& words, int group, int i, int half) {
  if constexpr (P::kKind == PackedKind::kQ2K) {
    return static_cast<int32_t>(words.scales[group] >> (16 * i + 8 * half) & 15);
  } else {
    return static_cast<int8_t>(words.offsets[group] >> (16 * i + 8 * half));
  }
}
/// The minimums of kQ2K that they stand beside.
template <typename P>
VITRINE_DEVICE int32_t part_minimum_of(const ChunkWords<P>& words, int group, int i, int half) {
  return static_cast<int32_t>(words.scales[group] >> (16 * i + 8 * half + 4) & 15);
}

/// A lane's numbers of 32 columns as bytes, a fragment of m16n8k32. kInt4, kInt3 and kQ2K: u; kInt8
/// and kQ6K: q; kMxfp4: 12 + 2 * value; kE4M3: as stored.
template <typename P>
VITRINE_DEVICE void byte_fragment(const ChunkWords<P>& words, int block, uint32_t (&a)[4]) {
  if constexpr (P::kIsBytes) {
    const Words4& four = words.numbers[block];
    a[0] = four.x;
    a[1] = four.y;
    a[2] = four.z;
    a[3] = four.w;
  } else if constexpr (P::kKind == PackedKind::kQ2K || P::kKind == PackedKind::kInt3) {
    const Words4& four = words.numbers[0];
    const uint32_t all[4] = {four.x, four.y, four.z, four.w};
    for (int i = 0; i < 4; ++i) {
      a[i] = all[i] >> (2 * block) & 0x03030303u;
      if constexpr (P::kHasHighBits) {
        a[i] |= (words.high[i / 2] >> (block + 4 * (i % 2)) & 0x01010101u) << 2;
      }
    }
  } else {
    const Words4& four = words.numbers[block / 2];
    const uint32_t own[2] = {block % 2 == 0 ? four.x : four.z, block % 2 == 0 ? four.y : four.w};
    for (int i = 0; i < 2; ++i) {
      if constexpr (P::kKind == PackedKind::kInt4) {
        a[i] = own[i] & kLowNibbles;
        a[2 + i] = own[i] >> 4 & kLowNibbles;
      } else {
        a[i] = mxfp4_bytes(own[i]);
        a[2 + i] = mxfp4_bytes(own[i] >> 16);
      }
    }
  }
}

/// Unpacks a chunk as bf16 numbers less their bias: fragments of m16n8k16 for the halves of 32
/// columns.
template <typename P>
VITRINE_DEVICE void bf16_fragments(const PackedLayout& layout, const ChunkWords<P>& words,
                                   int block, const uint32_t (&bias)[2], uint32_t (&a)[2][4]) {
  if constexpr (P::kKind == PackedKind::kBF16) {
    for (int half = 0; half < 2; ++half) {
      const Words4& four = words.numbers[2 * block + half];
      a[half][0] = four.x;
      a[half][1] = four.y;
      a[half][2] = four.z;
      a[half][3] = four.w;
    }
  } else {
    uint32_t bytes[4];
    byte_fragment(words, block, bytes);
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) {  // rows g, g + 8 of the first two columns, then the last two
        const uint32_t four = bytes[2 * half + i % 2];
        if constexpr (P::kKind == PackedKind::kE4M3) {
          a[half][i] = bf16_of_e4m3(four, i / 2);
        } else if constexpr (P::kKind == PackedKind::kInt8) {
          a[half][i] = bf16_of_signed(four, i / 2);
          if (layout.offset_format != OffsetFormat::kNone) {
            a[half][i] = subtract_bf16_pairs(a[half][i], bias[i % 2]);
          }
        } else {
          a[half][i] = subtract_bf16_pairs(bf16_above_128(four, i / 2), bias[i % 2]);
        }
      }
    }
  }
}

/// The bias of a group as bf16_fragments takes it.
template <typename P>
VITRINE_DEVICE void bf16_biases(const PackedLayout& layout, const ChunkWords<P>& words, int group,
                                uint32_t (&bias)[2]) {
  constexpr uint32_t k132 = 0x43044304u, k136 = 0x43084308u, k140 = 0x430c430cu;
  if constexpr (P::kKind == PackedKind::kMxfp4) {
    bias[0] = bias[1] = k140;
  } else {
    bias[0] = bias[1] = P::kBias == 8 ? k136 : P::kBias == 4 ? k132 : 0;
    if (layout.offset_format == OffsetFormat::kNone) return;
    for (int i = 0; i < 2; ++i) {
      bias[i] = bf16_pair((P::kBias != 0 ? 128 : 0) + bias_of<P>(layout, words, group, i));
    }
  }
}

}  // namespace vitrine::kernels::cuda
