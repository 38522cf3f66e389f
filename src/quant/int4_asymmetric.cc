// SPDX-License-Identifier: Apache-2.0
// The scheme int4-asymmetric: round-to-nearest to -8..7, one scale and one zero point per row
// and group of columns.
#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

QuantizedMatrix quantize_int4_asymmetric(std::span<const float> weights, int64_t rows, int64_t cols,
                                         DType dtype, int group_size) {
  return round_to_nearest(weights, rows, cols, dtype, {4, group_size, false});
}

const QuantMethodRegistration kInt4AsymmetricRegistration(
    {.name = "int4-asymmetric",
     .description = "4-bit integers, asymmetric, "
                    "round-to-nearest",
     .bits = 4,
     .symmetric = false,
     .quantize = &quantize_int4_asymmetric});

}  // namespace
}  // namespace vitrine::quant
