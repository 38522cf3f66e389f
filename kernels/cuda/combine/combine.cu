#include "kernels/cuda/combine/combine.h"

#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kVector = 4;  // floats of a 16-byte access

// Bytes: 12 an element (two reads, a write). Four elements a thread, the last few one by one.
VITRINE_KERNEL(kThreads)
void add_scaled_kernel(const float* x, float multiplier, int64_t count, float* residual) {
  const int64_t begin = (static_cast<int64_t>(block_x()) * kThreads + thread_index()) * kVector;
  if (begin + kVector <= count) {
    const Words4 a = load16(x + begin);
    Words4 r = load16(residual + begin);
    r.x = float_bits(bits_float(r.x) + multiplier * bits_float(a.x));
    r.y = float_bits(bits_float(r.y) + multiplier * bits_float(a.y));
    r.z = float_bits(bits_float(r.z) + multiplier * bits_float(a.z));
    r.w = float_bits(bits_float(r.w) + multiplier * bits_float(a.w));
    store16(residual + begin, r);
  } else {
    for (int64_t i = begin; i < count; ++i) residual[i] = residual[i] + multiplier * x[i];
  }
}

}  // namespace

Status add_scaled(const float* x, float multiplier, int64_t count, float* residual, Stream stream) {
  if (count <= 0) return refuse("add_scaled: count, expected at least 1");
  const auto blocks = static_cast<uint32_t>(divide_up<int64_t>(count, kThreads * kVector));
  return launch(add_scaled_kernel, {blocks}, kThreads, 0, stream, x, multiplier, count, residual);
}

}  // namespace vitrine::kernels::cuda
