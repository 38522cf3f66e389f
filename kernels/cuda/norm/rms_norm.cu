// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/norm/rms_norm.h"

#include "kernels/cuda/combine/addend.h"
#include "kernels/cuda/linear/quantize.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kMaxElements = 32768;

/// Up to a whole record.
constexpr int64_t padded_row(int64_t n) { return divide_up<int64_t>(n, kRecordCols) * kRecordCols; }

/// Behind the row in shared memory.
struct Tail {
  float inverse;
};

VITRINE_DEVICE uint32_t pair_of_bf16(float first, float second) {
  return narrow_bf16(first) | static_cast<uint32_t>(narrow_bf16(second)) << 16;
}

// One block a row. The row is read once, kept in shared memory, and written in the forms asked for.
// Bytes a row: 4n of the residual, 4n for each row of the addend and 4n to write the sum back; then
// 4n float32, 2n bfloat16, 1.25n int8.
template <Addend::Kind kKind>
VITRINE_KERNEL(kThreads)
void rms_norm_kernel(RmsNorm norm, bool whole) {
  auto* x = reinterpret_cast<float*>(dynamic_shared<unsigned char>());
  const int64_t n = norm.n;
  // The writing loop runs over whole records of 128, whichever thread they fall to.
  const int64_t padded = padded_row(n);
  auto* tail = reinterpret_cast<Tail*>(x + padded);
  const int64_t row = block_x();
  const int64_t token = norm.input_rows != nullptr ? norm.input_rows[row] : row;
  float* residual = norm.residual + token * n;
  for (int64_t i = thread_index() * kVector; i < padded; i += kThreads * kVector) {
    float values[kVector];
    load_floats(residual, i, n, whole, values);
    if constexpr (kKind != Addend::Kind::kNone) {
      if (i < n) {
        add_addend<kKind>(norm.addend, token, i, n, whole, values);
        store_floats(residual, i, n, whole, values);
      }
    }
    store_floats(x, i, padded, true, values);
  }
  sync_block();
  if (warp_index() == 0) {
    const float mean = sum_of_squares(x, n) / static_cast<float>(n);
    if (lane_index() == 0) {
      tail->inverse = 1.0f / square_root(mean + norm.eps);
      if (norm.norms != nullptr) {
        norm.norms[row * norm.norm_stride] = square_root(mean * static_cast<float>(n));
      }
    }
  }
  sync_block();
  const float inverse = tail->inverse;
  const bool has_weight = norm.weight != nullptr;
  for (int64_t i = thread_index() * kVector; i < padded; i += kThreads * kVector) {
    float values[kVector], weight[kVector] = {};
    load_floats(x, i, padded, true, values);
    if (has_weight) load_floats(norm.weight, i, n, whole, weight);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      // What stands past the row is 0 and stays it, also where the inverse is NaN.
      values[j] = i + j < n ? values[j] * inverse : 0.0f;
      if (has_weight && i + j < n) values[j] = values[j] * weight[j];
    }
    if (norm.out != nullptr) store_floats(norm.out + row * n, i, n, whole, values);
    if (norm.bf16_rows != nullptr) {
      const uint32_t low = pair_of_bf16(values[0], values[1]);
      const uint32_t high = pair_of_bf16(values[2], values[3]);
      auto* out = static_cast<unsigned char*>(norm.bf16_rows) + row * bf16_row_bytes(n);
      *reinterpret_cast<uint64_t*>(out + 2 * i) = low | static_cast<uint64_t>(high) << 32;
    }
    if (norm.int8_rows != nullptr) {
      auto* out = static_cast<uint8_t*>(norm.int8_rows) + row * int8_row_bytes(n);
      quantize_record(values, norm.group_size, out + i / kRecordCols * kRecordBytes);
    }
    if (norm.e4m3_rows != nullptr) {
      auto* out = static_cast<uint8_t*>(norm.e4m3_rows) + row * int8_row_bytes(n);
      quantize_record_e4m3(values, out + i / kRecordCols * kRecordBytes);
    }
  }
}

const char* why_bad(const RmsNorm& norm, int32_t rows) {
  if (rows < 1) return "rms_norm: rows, expected at least 1";
  if (norm.n < 1 || norm.n > kMaxElements) return "rms_norm: n, expected 1 to 32,768";
  const int32_t group = norm.group_size;
  if (norm.int8_rows != nullptr && group != 32 && group != 64 && group != 128) {
    return "rms_norm: group_size, expected 32, 64 or 128";
  }
  return why_bad_addend(norm.addend);
}

}  // namespace

Status rms_norm(const RmsNorm& norm, int32_t rows, Stream stream) {
  if (const char* why = why_bad(norm, rows)) return refuse(why);
  const int64_t n = norm.n;
  const bool whole = is_whole(n, norm.residual) && is_whole(n, norm.weight) &&
                     is_whole(n, norm.out) && is_whole(n, norm.addend);
  const size_t shared = static_cast<size_t>(padded_row(n)) * sizeof(float) + sizeof(Tail);
  const Dim3 grid{static_cast<uint32_t>(rows)};
  switch (norm.addend.kind) {
    case Addend::Kind::kNone:
      return launch(rms_norm_kernel<Addend::Kind::kNone>, grid, kThreads, shared, stream, norm,
                    whole);
    case Addend::Kind::kScaled:
      return launch(rms_norm_kernel<Addend::Kind::kScaled>, grid, kThreads, shared, stream, norm,
                    whole);
    default:
      return launch(rms_norm_kernel<Addend::Kind::kExperts>, grid, kThreads, shared, stream, norm,
                    whole);
  }
}

}  // namespace vitrine::kernels::cuda
