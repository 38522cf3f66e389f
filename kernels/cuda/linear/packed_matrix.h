// SPDX-License-Identifier: Apache-2.0
// Weight matrices as tensor cores take them: packed once at load, on the host, from the matrices
// that the CPU kernels read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::kernels::cuda {

/// What a packed matrix stores for an element.
enum class PackedKind : uint8_t {
  kInt4,   ///< u 0 … 15
  kInt3,   ///< u 0 … 7
  kInt8,   ///< q -128 … 127
  kMxfp4,  ///< an E2M1 code
  kBF16,
  kQ6K,   ///< q -32 … 31, with an integer scale for each 16 columns
  kQ2K,   ///< u 0 … 3, with an integer scale and an integer minimum for each 16 columns
  kE4M3,  ///< an E4M3 float's bits
};

/// Whether its numbers have integer scales for 16 columns, which int8 activations alone take.
constexpr bool has_parts(PackedKind kind) {
  return kind == PackedKind::kQ6K || kind == PackedKind::kQ2K;
}

/// A packed matrix [rows, cols]: tiles of 16 rows, in each the chunks of 128 columns in order, each
/// one run of chunk_bytes: the numbers, the scales of its groups, their offsets. What is past the
/// last row or column is a number 0, a scale 0 and an offset 0.
///
/// The numbers are units of 512 bytes, 16 for each lane of a warp, so that one 16-byte load fills
/// fragments of mma.m16n8k32 (int8) or mma.m16n8k16 (bf16) of rows g and g + 8, with g = lane / 4
/// and t = lane % 4. In each 32 columns a lane has columns 8t … 8t + 7, which the instruction calls
/// 4t … 4t + 3 and 16 + 4t …; activations are read in the same order, so a lane's part of them is
/// one run of memory. The four words of a lane:
///   kInt4:  a unit is 64 columns. Row g, row g + 8 of the first 32, then of the second. Byte j of
///   a
///           word holds column 8t + j in its low nibble, 8t + 4 + j in its high one.
///   kMxfp4: the same; nibble j of a word holds column 8t + j.
///   kInt8:  a unit is 32 columns. Columns 8t … 8t + 3 of row g, of row g + 8, then 8t + 4 … of
///   both. kE4M3: the same. kBF16:  a unit is half of 32 columns, s = 0 or 1. Columns 8t + 4s, 8t +
///   4s + 1 of row g, of row
///           g + 8, then 8t + 4s + 2, 8t + 4s + 3 of both.
///   kQ2K:   one unit is all 128 columns. Bits 2i and 2i + 1 of byte j are, in the i-th 32 columns,
///           column 8t + j of row g, of row g + 8, then column 8t + 4 + j of both.
///   kInt3:  the low two bits as kQ2K. Behind that unit 8 bytes for each lane, the high bits: bits
///   i
///           and 4 + i of byte j are, in the i-th 32 columns, column 8t + j of row g and of row
///           g + 8, in the second word column 8t + 4 + j of both.
/// Scales and offsets of a group are 8 pairs: of row g and row g + 8.
///   weight = scale * (number - zero_point), or scale * u + minimum with u = number (kInt4, kInt3)
///   or number + 128 (kInt8); without a minimum kInt4: number = u - 8, kInt3: u - 4. Zero points
///   are int16, scales of kMxfp4 E8M0 bytes. kQ6K has in place of offsets pairs of two int8, s0 |
///   s1 << 8: weight = scale * s * number, with s0 in the first 16 columns of a group and s1 in the
///   others. kQ2K has pairs of bytes in place of scales, s0 | m0 << 4 and s1 | m1 << 4, and behind
///   those of all four groups float16 pairs d and then dmin, once for the chunk: weight = d * s * u
///   - dmin * m.
struct PackedLayout {
  PackedKind kind = PackedKind::kInt4;
  ScaleFormat scale_format = ScaleFormat::kF32;
  OffsetFormat offset_format = OffsetFormat::kNone;
  int32_t group_size = 0;  // 32, 64 or 128; kBF16, kE4M3: 128
  int64_t rows = 0;
  int64_t cols = 0;
  int32_t groups = 0;        // of a row
  int32_t tiles = 0;         // of 16 rows
  int32_t chunks = 0;        // of 128 columns
  int32_t number_bytes = 0;  // of a chunk
  int32_t scale_bytes = 0;   // of one group of a tile; 0: none
  int32_t offset_bytes = 0;  // of one group of a tile; 0: none
  int32_t chunk_bytes = 0;   // a multiple of 16

  constexpr int64_t tile_bytes() const { return int64_t{chunk_bytes} * chunks; }
  constexpr int64_t bytes() const { return tile_bytes() * tiles; }
};

inline constexpr int kChunkCols = 128;
inline constexpr int kPackedUnitBytes = 512;
inline constexpr int kHighBitBytes = 256;  // of a chunk of kInt3

/// The layout for a matrix of packed tiles (not of a file's blocks), of bf16 or E4M3: float32 and
/// float16 have more bits than a tensor core takes. Reads none of its memory.
PackedLayout packed_layout(const Weight& weight);

/// Packs rows [row_begin, row_end) (row_begin a multiple of 16; row_end too, unless it is the last)
/// of a matrix into memory of packed_layout(weight).bytes() on 16 bytes, of which it writes all
/// bytes of those rows' tiles. Threads may pack different rows at once.
void pack_matrix(const Weight& weight, int64_t row_begin, int64_t row_end, void* packed);

}  // namespace vitrine::kernels::cuda
