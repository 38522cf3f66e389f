// SPDX-License-Identifier: Apache-2.0
// i16: keys and values as integers of 12 bits and a sign, with a scale for each position and head,
// which attention multiplies as they are. The reference path rounds to them and keeps float32.
#include "kv/codec.h"

namespace vitrine::kv {
namespace {

int64_t integer_bytes(int64_t head_dim) { return kernels::int16_kv_bytes(head_dim); }

constexpr CodecEntry kI16{
    .name = "i16",
    .has_one_length = false,
    .key_bytes = integer_bytes,
    .value_bytes = integer_bytes,
    .cpu_kernels = [](const kernels::CpuKernels& t) { return kernels::find_kv_kernels(t, "i16"); },
    .device_type = DType::kI16,
    .reference_type = DType::kF32,
    .reference_rounds_to_integers = true,
    .sees_windows = true,
    .sees_sinks = true,
};

VITRINE_REGISTER_KV_CODEC(kI16);

}  // namespace
}  // namespace vitrine::kv
