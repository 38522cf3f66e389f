// SPDX-License-Identifier: Apache-2.0
// Float32 rows as the rows that the products read.
#include "kernels/cuda/linear/quantize.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kWarps = 4;

VITRINE_DEVICE void load_columns(const float* row, int64_t begin, int64_t cols, float (&x)[4]) {
  for (int i = 0; i < 4; ++i) x[i] = begin + i < cols ? row[begin + i] : 0.0f;
}

// Bytes: 4 read and 1.25 written an element; a warp makes one record of 128.
VITRINE_KERNEL(kWarps* kWarp)
void quantize_kernel(const float* x, int64_t x_stride, int64_t cols, int32_t group_size,
                     uint8_t* out) {
  const int64_t record = static_cast<int64_t>(block_y()) * kWarps + warp_index();
  if (record * kRecordCols >= cols) return;
  float values[4];
  load_columns(x + block_x() * x_stride, record * kRecordCols + 4 * lane_index(), cols, values);
  quantize_record(values, group_size,
                  out + block_x() * int8_row_bytes(cols) + record * kRecordBytes);
}

// Bytes as above.
VITRINE_KERNEL(kWarps* kWarp)
void quantize_e4m3_kernel(const float* x, int64_t x_stride, int64_t cols, uint8_t* out) {
  const int64_t record = static_cast<int64_t>(block_y()) * kWarps + warp_index();
  if (record * kRecordCols >= cols) return;
  float values[4];
  load_columns(x + block_x() * x_stride, record * kRecordCols + 4 * lane_index(), cols, values);
  quantize_record_e4m3(values, out + block_x() * int8_row_bytes(cols) + record * kRecordBytes);
}

// Bytes: 4 read and 2 written an element.
VITRINE_KERNEL(kWarps* kWarp)
void round_kernel(const float* x, int64_t x_stride, int64_t cols, uint8_t* out) {
  const int64_t chunk = static_cast<int64_t>(block_y()) * kWarps + warp_index();
  if (chunk * kRecordCols >= cols) return;
  const int64_t begin = chunk * kRecordCols + 4 * lane_index();
  float values[4];
  load_columns(x + block_x() * x_stride, begin, cols, values);
  auto* words = reinterpret_cast<uint32_t*>(out + block_x() * bf16_row_bytes(cols) + 2 * begin);
  for (int i = 0; i < 2; ++i) {
    words[i] = narrow_bf16(values[2 * i]) | static_cast<uint32_t>(narrow_bf16(values[2 * i + 1]))
                                                << 16;
  }
}

// Rows in the dimension that has room for the slots of many tokens.
Dim3 record_grid(int64_t count, int64_t cols) {
  return {static_cast<uint32_t>(count),
          static_cast<uint32_t>(divide_up<int64_t>(cols, kRecordCols * kWarps))};
}

}  // namespace

Status quantize_rows(const float* x, int64_t x_stride, int64_t count, int64_t cols,
                     int32_t group_size, void* out, Stream stream) {
  if (count <= 0 || count > INT32_MAX || cols <= 0) {
    return refuse("quantize_rows: expected 1 to 2^31 - 1 rows of at least one column");
  }
  if (group_size != 32 && group_size != 64 && group_size != 128) {
    return refuse("quantize_rows: group_size, expected 32, 64 or 128");
  }
  return launch(quantize_kernel, record_grid(count, cols), kWarps * kWarp, 0, stream, x, x_stride,
                cols, group_size, static_cast<uint8_t*>(out));
}

Status quantize_rows_e4m3(const float* x, int64_t x_stride, int64_t count, int64_t cols, void* out,
                          Stream stream) {
  if (count <= 0 || count > INT32_MAX || cols <= 0) {
    return refuse("quantize_rows_e4m3: expected 1 to 2^31 - 1 rows of at least one column");
  }
  return launch(quantize_e4m3_kernel, record_grid(count, cols), kWarps * kWarp, 0, stream, x,
                x_stride, cols, static_cast<uint8_t*>(out));
}

Status round_rows(const float* x, int64_t x_stride, int64_t count, int64_t cols, void* out,
                  Stream stream) {
  if (count <= 0 || count > INT32_MAX || cols <= 0) {
    return refuse("round_rows: expected 1 to 2^31 - 1 rows of at least one column");
  }
  return launch(round_kernel, record_grid(count, cols), kWarps * kWarp, 0, stream, x, x_stride,
                cols, static_cast<uint8_t*>(out));
}

}  // namespace vitrine::kernels::cuda
