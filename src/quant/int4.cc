// SPDX-License-Identifier: Apache-2.0
// The scheme int4: symmetric round-to-nearest to -8..7, one scale per row and group of columns.
#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

QuantizedMatrix quantize_int4(std::span<const float> weights, int64_t rows, int64_t cols,
                              DType dtype, int group_size) {
  return round_to_nearest(weights, rows, cols, dtype, {4, group_size});
}

const QuantMethodRegistration kInt4Registration({.name = "int4",
                                                 .description = "4-bit integers, symmetric, "
                                                                "round-to-nearest",
                                                 .bits = 4,
                                                 .quantize = &quantize_int4});

}  // namespace
}  // namespace vitrine::quant
