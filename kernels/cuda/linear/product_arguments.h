// SPDX-License-Identifier: Apache-2.0
// What the product kernels are given, and which shapes of a block they have.
#pragma once

#include "kernels/cuda/linear/linear.h"

namespace vitrine::kernels::cuda {

/// By value to every kernel of the family.
struct ProductArguments {
  PackedLayout layout;
  const uint8_t* matrix[2] = {};  // [1]: `up` of gate_up
  int64_t expert_bytes = 0;       // from one expert's matrix to the next's
  Rows rows;
  Epilogue epilogue;
  bool gated = false;
};

/// The layout of a kind that takes most of it.
template <PackedKind kKind>
constexpr PackedLayout largest_layout() {
  PackedLayout layout;
  layout.group_size = kKind == PackedKind::kBF16 ? kChunkCols : 32;
  layout.offset_format = kKind == PackedKind::kBF16 ? OffsetFormat::kNone : OffsetFormat::kF32;
  const int units =
      kKind == PackedKind::kBF16                                                              ? 8
      : kKind == PackedKind::kInt8 || kKind == PackedKind::kQ6K || kKind == PackedKind::kE4M3 ? 4
                                                                                              : 2;
  layout.chunk_bytes = units * kPackedUnitBytes;
  if (kKind != PackedKind::kBF16) layout.chunk_bytes += 4 * (64 + 64);  // float32 pairs of both
  return layout;
}

/// One shape of a block: 4 warps, kSlices of them along K and the rest along the rows, each with
/// kRowTiles tiles of 16 rows and kTokens tokens. A step of a block is 128 * kSlices columns.
template <PackedKind kKindOf, ActivationFormat kActivationsOf, int kTokensOf, int kRowTilesOf,
          int kSlicesOf, int kStagesOf>
struct ProductShape {
  static constexpr PackedKind kKind = kKindOf;
  static constexpr ActivationFormat kActivations = kActivationsOf;
  static constexpr bool kHasRecords = kActivations != ActivationFormat::kBF16;  // of bytes
  static constexpr int kTokens = kTokensOf;
  static constexpr int kTokenTiles = kTokensOf / 8;
  static constexpr int kRowTiles = kRowTilesOf;
  static constexpr int kSlices = kSlicesOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kWarps = 4;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kRowWarps = kWarps / kSlices;
  static constexpr int kRecord =
      kHasRecords ? kRecordBytes : 2 * kChunkCols;  // a token's 128 columns
  // A token's step in shared memory: its rows begin 32 (records) or 64 (bf16) bytes apart modulo
  // 128, so that the 8- or 16-byte loads of eight tokens meet no bank twice.
  static constexpr int kTokenStride =
      kSlices * kRecord + (kHasRecords ? (kSlices == 1 ? 0 : 32) : 64);
  static_assert(kTokenStride % 128 == (kHasRecords ? 32 : 64));
  static_assert(kSlices == 1 || (kSlices == kWarps && kTokens == 8));
  static_assert(kTokens <= kThreads);

  static constexpr int stage_bytes(const PackedLayout& layout) {
    return kWarps * kRowTiles * layout.chunk_bytes + kTokens * kTokenStride;
  }
  /// Terms (x, y) of a chunk, each to be added as fma(x, y, sum): one or two a group.
  static constexpr int chunk_terms(const PackedLayout& layout) {
    return kChunkCols / layout.group_size *
           (layout.offset_format > OffsetFormat::kZeroPoint ? 2 : 1);
  }
  static constexpr int exchange_bytes(const PackedLayout& layout) {
    return kSlices == 1 ? 0 : kSlices * chunk_terms(layout) * kRowTiles * 16 * kTokens * 8;
  }
  static constexpr int shared_bytes(const PackedLayout& layout) {
    return 4 * kThreads + kStages * stage_bytes(layout) + exchange_bytes(layout);
  }
};

}  // namespace vitrine::kernels::cuda
