// SPDX-License-Identifier: Apache-2.0
// f32, f16 and bf16: keys and values as floats, rounded as they are written.
#include "kv/codec.h"

namespace vitrine::kv {
namespace {

int64_t wide_bytes(int64_t head_dim) {
  return kernels::float_kv_bytes(kernels::WeightFormat::kF32, head_dim);
}
int64_t narrow_bytes(int64_t head_dim) {
  return kernels::float_kv_bytes(kernels::WeightFormat::kF16, head_dim);
}

constexpr CodecEntry kF32{
    .name = "f32",
    .has_one_length = false,
    .key_bytes = wide_bytes,
    .value_bytes = wide_bytes,
    .cpu_kernels = [](const kernels::CpuKernels& t) { return kernels::find_kv_kernels(t, "f32"); },
    .device_type = DType::kF32,
    .reference_type = DType::kF32,
    .sees_windows = true,
    .sees_sinks = true,
    .is_exact = true,
};
constexpr CodecEntry kF16{
    .name = "f16",
    .has_one_length = false,
    .key_bytes = narrow_bytes,
    .value_bytes = narrow_bytes,
    .cpu_kernels = [](const kernels::CpuKernels& t) { return kernels::find_kv_kernels(t, "f16"); },
    .device_type = DType::kF16,
    .reference_type = DType::kF16,
    .sees_windows = true,
    .sees_sinks = true,
};
constexpr CodecEntry kBF16{
    .name = "bf16",
    .has_one_length = false,
    .key_bytes = narrow_bytes,
    .value_bytes = narrow_bytes,
    .cpu_kernels = [](const kernels::CpuKernels& t) { return kernels::find_kv_kernels(t, "bf16"); },
    .device_type = DType::kBF16,
    .reference_type = DType::kBF16,
    .sees_windows = true,
    .sees_sinks = true,
};

VITRINE_REGISTER_KV_CODEC(kF32);
VITRINE_REGISTER_KV_CODEC(kF16);
VITRINE_REGISTER_KV_CODEC(kBF16);

}  // namespace
}  // namespace vitrine::kv
