// SPDX-License-Identifier: Apache-2.0
// The scheme int3: symmetric round-to-nearest to -4..3, one scale per row and group of columns.
#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

QuantizedMatrix quantize_int3(std::span<const float> weights, int64_t rows, int64_t cols,
                              DType dtype, int group_size) {
  return round_to_nearest(weights, rows, cols, dtype, {3, group_size});
}

const QuantMethodRegistration kInt3Registration({.name = "int3",
                                                 .description = "3-bit integers, symmetric, "
                                                                "round-to-nearest",
                                                 .bits = 3,
                                                 .quantize = &quantize_int3});

}  // namespace
}  // namespace vitrine::quant
