// SPDX-License-Identifier: Apache-2.0
// Weight fragments, scales and offsets of a chunk in shared memory, in the order of
// packed_matrix.h.
#pragma once

#include "kernels/cuda/linear/packed_matrix.h"
#include "kernels/cuda/linear/words.h"

namespace vitrine::kernels::cuda {

/// A lane's numbers of 16 rows and 128 columns as bytes: [32 columns][fragment word of m16n8k32].
/// kInt4 and kQ2K: u; kInt8 and kQ6K: q; kMxfp4: 12 + 2 * value; kE4M3: as stored.
using ByteFragments = uint32_t[4][4];

template <PackedKind kKind>
VITRINE_DEVICE void load_fragments(const uint8_t* chunk, ByteFragments& a) {
  const uint8_t* own = chunk + 16 * lane_index();
  constexpr bool kBytes =
      kKind == PackedKind::kInt8 || kKind == PackedKind::kQ6K || kKind == PackedKind::kE4M3;
  if constexpr (kKind == PackedKind::kQ2K) {
    const Words4 words = load16(own);
    const uint32_t four[4] = {words.x, words.y, words.z, words.w};
    for (int i = 0; i < 4; ++i) {
      for (int w = 0; w < 4; ++w) a[i][w] = four[w] >> (2 * i) & 0x03030303u;
    }
    return;
  }
  constexpr int kUnits = kBytes ? 4 : 2;
  for (int i = 0; i < kUnits; ++i) {
    const Words4 words = load16(own + kPackedUnitBytes * i);
    const uint32_t four[4] = {words.x, words.y, words.z, words.w};
    for (int w = 0; w < 4; ++w) {
      if constexpr (kBytes) {
        a[i][w] = four[w];
      } else if constexpr (kKind == PackedKind::kInt4) {
        a[2 * i + w / 2][w % 2] = four[w] & kLowNibbles;
        a[2 * i + w / 2][2 + w % 2] = four[w] >> 4 & kLowNibbles;
      } else {
        a[2 * i + w / 2][w % 2] = mxfp4_bytes(four[w]);
        a[2 * i + w / 2][2 + w % 2] = mxfp4_bytes(four[w] >> 16);
      }
    }
  }
}

/// What is added to a number where it is stored (so that it is unsigned, or a byte's).
template <PackedKind kKind>
constexpr int stored_bias(bool has_minimum) {
  switch (kKind) {
    case PackedKind::kInt4: return has_minimum ? 0 : 8;
    case PackedKind::kInt8: return has_minimum ? -128 : 0;
    case PackedKind::kMxfp4: return 12;
    default: return 0;
  }
}

/// The float at `index` of scales or minimums.
VITRINE_DEVICE float load_entry(ScaleFormat format, const uint8_t* entries, int index) {
  if (format == ScaleFormat::kF32) return reinterpret_cast<const float*>(entries)[index];
  const uint16_t bits = reinterpret_cast<const uint16_t*>(entries)[index];
  return format == ScaleFormat::kF16 ? widen_f16(bits) : widen_bf16(bits);
}

template <PackedKind kKind>
VITRINE_DEVICE void load_scales(const PackedLayout& layout, const uint8_t* chunk, int group,
                                float (&scale)[2]) {
  const uint8_t* scales = chunk + layout.number_bytes + group * layout.scale_bytes;
  const int pair = lane_index() / 4 * 2;
  for (int i = 0; i < 2; ++i) {
    if constexpr (kKind == PackedKind::kMxfp4) {
      const uint32_t e = scales[pair + i];
      scale[i] = bits_float(e < 2 ? 0x00200000u << e : (e - 1) << 23);  // 2^(e - 128)
    } else {
      scale[i] = load_entry(layout.scale_format, scales, pair + i);
    }
  }
}

VITRINE_DEVICE const uint8_t* group_offsets(const PackedLayout& layout, const uint8_t* chunk,
                                            int group) {
  return chunk + layout.number_bytes + kChunkCols / layout.group_size * layout.scale_bytes +
         group * layout.offset_bytes;
}

/// The integer scales of kQ6K and kQ2K, for rows g and g + 8: [row][half of the group].
template <PackedKind kKind>
VITRINE_DEVICE void load_part_scales(const PackedLayout& layout, const uint8_t* chunk, int group,
                                     int32_t (&parts)[2][2]) {
  constexpr bool kIsQ2K = kKind == PackedKind::kQ2K;
  const uint8_t* own = (kIsQ2K ? chunk + layout.number_bytes + group * layout.scale_bytes
                               : group_offsets(layout, chunk, group)) +
                       lane_index() / 4 * 4;
  for (int i = 0; i < 4; ++i) {
    parts[i / 2][i % 2] = kIsQ2K ? own[i] & 15 : static_cast<int8_t>(own[i]);
  }
}
/// The minimums of kQ2K that they stand beside.
VITRINE_DEVICE void load_part_minimums(const PackedLayout& layout, const uint8_t* chunk, int group,
                                       int32_t (&parts)[2][2]) {
  const uint8_t* own =
      chunk + layout.number_bytes + group * layout.scale_bytes + lane_index() / 4 * 4;
  for (int i = 0; i < 4; ++i) parts[i / 2][i % 2] = own[i] >> 4;
}
/// d and dmin of kQ2K.
VITRINE_DEVICE void load_q2k_scales(const PackedLayout& layout, const uint8_t* chunk,
                                    float (&scale)[2], float (&minimum)[2]) {
  const uint8_t* pairs = group_offsets(layout, chunk, 0);
  for (int i = 0; i < 2; ++i) {
    const int index = lane_index() / 4 * 2 + i;
    scale[i] = load_entry(ScaleFormat::kF16, pairs, index);
    minimum[i] = load_entry(ScaleFormat::kF16, pairs, 16 + index);
  }
}

VITRINE_DEVICE void load_minimums(const PackedLayout& layout, const uint8_t* chunk, int group,
                                  float (&minimum)[2]) {
  const ScaleFormat format = layout.offset_format == OffsetFormat::kF16    ? ScaleFormat::kF16
                             : layout.offset_format == OffsetFormat::kBF16 ? ScaleFormat::kBF16
                                                                           : ScaleFormat::kF32;
  const uint8_t* offsets = group_offsets(layout, chunk, group);
  for (int i = 0; i < 2; ++i) {
    minimum[i] = load_entry(format, offsets, lane_index() / 4 * 2 + i);
  }
}

/// What to subtract from the stored numbers of a group: their bias and the rows' zero points.
template <PackedKind kKind>
VITRINE_DEVICE void load_biases(const PackedLayout& layout, const uint8_t* chunk, int group,
                                int32_t (&bias)[2]) {
  const bool has_minimum = layout.offset_format > OffsetFormat::kZeroPoint;
  bias[0] = bias[1] = stored_bias<kKind>(has_minimum);
  if (layout.offset_format != OffsetFormat::kZeroPoint) return;
  const auto* points = reinterpret_cast<const int16_t*>(group_offsets(layout, chunk, group));
  for (int i = 0; i < 2; ++i) bias[i] += points[lane_index() / 4 * 2 + i];
}

}  // namespace vitrine::kernels::cuda
