// SPDX-License-Identifier: Apache-2.0
// The scheme int3-asymmetric: round-to-nearest to -4..3, one scale and one zero point per row
// and group of columns.
#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

QuantizedMatrix quantize_int3_asymmetric(std::span<const float> weights, int64_t rows, int64_t cols,
                                         DType dtype, int group_size) {
  return round_to_nearest(weights, rows, cols, dtype, {3, group_size, false});
}

const QuantMethodRegistration kInt3AsymmetricRegistration(
    {.name = "int3-asymmetric",
     .description = "3-bit integers, asymmetric, "
                    "round-to-nearest",
     .bits = 3,
     .symmetric = false,
     .quantize = &quantize_int3_asymmetric});

}  // namespace
}  // namespace vitrine::quant
