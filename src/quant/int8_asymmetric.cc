// SPDX-License-Identifier: Apache-2.0
// The scheme int8-asymmetric: round-to-nearest to -128..127, one scale and one zero point per row
// and group of columns.
#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

QuantizedMatrix quantize_int8_asymmetric(std::span<const float> weights, int64_t rows, int64_t cols,
                                         DType dtype, int group_size) {
  return round_to_nearest(weights, rows, cols, dtype, {8, group_size, false});
}

const QuantMethodRegistration kInt8AsymmetricRegistration(
    {.name = "int8-asymmetric",
     .description = "8-bit integers, asymmetric, "
                    "round-to-nearest",
     .bits = 8,
     .symmetric = false,
     .quantize = &quantize_int8_asymmetric});

}  // namespace
}  // namespace vitrine::quant
