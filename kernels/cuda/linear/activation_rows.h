// SPDX-License-Identifier: Apache-2.0
// Input rows of the tensor-core products, and what makes them from float32 rows.
#pragma once

#include <cstdint>

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// Beside the int8 values of a group: value = scale * q; sum = Σ q, exact.
struct GroupFactor {
  float scale;
  int32_t sum;
};

/// Rows of int8 are records of 128 columns: the values, then the factors of their groups (4, 2 or 1
/// of them for groups of 32, 64 and 128; zeros behind). Past the last column values are 0. A record
/// is contiguous, so that one token's part of a step is one run of memory, and its 160 bytes put
/// the rows of a tile into shared memory without bank conflicts.
inline constexpr int kRecordBytes = 160;
inline constexpr int kRecordCols = 128;

constexpr int64_t int8_row_bytes(int64_t cols) {
  return (cols + kRecordCols - 1) / kRecordCols * kRecordBytes;
}
/// Rows of bf16 are padded with zeros to a multiple of 128 columns.
constexpr int64_t bf16_row_bytes(int64_t cols) {
  return (cols + kRecordCols - 1) / kRecordCols * kRecordCols * 2;
}

/// Rows of `x` [count, cols] float32 (stride x_stride) as int8 rows `out` of int8_row_bytes(cols)
/// each, 16-byte aligned; group_size 32, 64 or 128. Bit for bit the CPU's quantization
/// (docs/numerics.md, "Activation quantization").
Status quantize_rows(const float* x, int64_t x_stride, int64_t count, int64_t cols,
                     int32_t group_size, void* out, Stream stream);

/// The same rows as E4M3 rows `out` of int8_row_bytes(cols) each: records as above, groups of 128,
/// with bytes that are E4M3 floats, scale = max|x| / 448 and sum 0 (docs/numerics.md).
Status quantize_rows_e4m3(const float* x, int64_t x_stride, int64_t count, int64_t cols, void* out,
                          Stream stream);

/// The same rows as bf16 rows of bf16_row_bytes(cols), rounded to nearest even.
Status round_rows(const float* x, int64_t x_stride, int64_t count, int64_t cols, void* out,
                  Stream stream);

}  // namespace vitrine::kernels::cuda
