// SPDX-License-Identifier: Apache-2.0
// Elements of a float format, one or four at a time.
#pragma once

#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {

template <FloatFormat kFormat>
VITRINE_DEVICE float load_element(const void* data, int64_t i) {
  if constexpr (kFormat == FloatFormat::kF32) return static_cast<const float*>(data)[i];
  if constexpr (kFormat == FloatFormat::kE4M3) {
    return widen_e4m3(static_cast<const uint8_t*>(data)[i]);
  }
  const uint16_t bits = static_cast<const uint16_t*>(data)[i];
  return kFormat == FloatFormat::kF16 ? widen_f16(bits) : widen_bf16(bits);
}

template <FloatFormat kFormat>
VITRINE_DEVICE void store_element(void* data, int64_t i, float value) {
  if constexpr (kFormat == FloatFormat::kF32) {
    static_cast<float*>(data)[i] = value;
  } else {
    static_cast<uint16_t*>(data)[i] =
        kFormat == FloatFormat::kF16 ? narrow_f16(value) : narrow_bf16(value);
  }
}

/// Four consecutive elements; 8 or 16 bytes at once where `whole` says that i is at a multiple of
/// them.
template <FloatFormat kFormat>
VITRINE_DEVICE void load_elements(const void* data, int64_t i, bool whole, float (&out)[kVector]) {
  if constexpr (kFormat == FloatFormat::kF32) {
    load_floats(static_cast<const float*>(data), i, i + kVector, whole, out);
  } else {
    const auto* halves = static_cast<const uint16_t*>(data) + i;
    uint64_t bits = 0;
    if (whole) {
      bits = *reinterpret_cast<const uint64_t*>(halves);
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) bits |= static_cast<uint64_t>(halves[j]) << (16 * j);
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const auto half = static_cast<uint16_t>(bits >> (16 * j));
      out[j] = kFormat == FloatFormat::kF16 ? widen_f16(half) : widen_bf16(half);
    }
  }
}

/// Calls `with` with the format (not kE4M3) as a constant: FormatConstant<format>.
template <FloatFormat kFormat>
struct FormatConstant {
  static constexpr FloatFormat value = kFormat;
};
template <typename With>
auto with_format(FloatFormat format, With with) {
  switch (format) {
    case FloatFormat::kF16: return with(FormatConstant<FloatFormat::kF16>());
    case FloatFormat::kBF16: return with(FormatConstant<FloatFormat::kBF16>());
    default: return with(FormatConstant<FloatFormat::kF32>());
  }
}

}  // namespace vitrine::kernels::cuda
