// SPDX-License-Identifier: Apache-2.0
// 16-bit floats as files hold them: IEEE binary16 and bfloat16, rounded to the nearest with ties to
// even. A NaN is always the same one, so that equal values have equal bytes.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cpu/half.h"

namespace vitrine {

/// Narrows to IEEE binary16; what is too large becomes infinite.
inline uint16_t to_half(float value) {
  return std::isnan(value) ? uint16_t{0x7E00} : kernels::narrow_f16(value);
}

inline float from_half(uint16_t half) { return kernels::widen_f16(half); }

/// Narrows to bfloat16: float32's range with 8 bits of precision.
inline uint16_t to_bfloat16(float value) {
  return std::isnan(value) ? uint16_t{0x7FC0} : kernels::narrow_bf16(value);
}

inline float from_bfloat16(uint16_t half) { return kernels::widen_bf16(half); }

}  // namespace vitrine
