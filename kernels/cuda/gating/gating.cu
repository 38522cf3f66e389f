// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/gating/gating.h"

#include "kernels/cuda/device_math.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 128;

VITRINE_DEVICE float clamped_gating(float gate, float up, float alpha, float limit) {
  const float g = limit < gate ? limit : gate;
  const float u = limit < up ? limit : up < -limit ? -limit : up;
  return (u + 1.0f) * (g / (1.0f + exp_float(-(alpha * g))));
}

// Bytes: 12 an element, 10 where bf16 is written.
template <bool kIsClamped>
VITRINE_KERNEL(kThreads)
void gating_kernel(float alpha, float limit, const float* gate, const float* up, int64_t count,
                   void* out, bool is_bf16) {
  const int64_t i = static_cast<int64_t>(block_x()) * kThreads + thread_index();
  if (i >= count) return;
  const float value =
      kIsClamped ? clamped_gating(gate[i], up[i], alpha, limit) : silu(gate[i]) * up[i];
  if (is_bf16) {
    static_cast<uint16_t*>(out)[i] = narrow_bf16(value);
  } else {
    static_cast<float*>(out)[i] = value;
  }
}

}  // namespace

Status apply_gating(const Gating& gating, const float* gate, const float* up, int64_t count,
                    void* out, FloatFormat out_format, Stream stream) {
  if (count < 1) return refuse("apply_gating: count, expected at least 1");
  if (out_format != FloatFormat::kF32 && out_format != FloatFormat::kBF16) {
    return refuse("apply_gating: out_format, expected float32 or bf16");
  }
  if (gating.kind != Gating::Kind::kSilu && gating.kind != Gating::Kind::kClamped) {
    return refuse("apply_gating: kind, expected silu or clamped");
  }
  const auto start = [&](auto* kernel) {
    const auto blocks = static_cast<uint32_t>(divide_up<int64_t>(count, kThreads));
    return launch(kernel, {blocks}, kThreads, 0, stream, gating.alpha, gating.limit, gate, up,
                  count, out, out_format == FloatFormat::kBF16);
  };
  return gating.kind == Gating::Kind::kClamped ? start(gating_kernel<true>)
                                               : start(gating_kernel<false>);
}

}  // namespace vitrine::kernels::cuda
