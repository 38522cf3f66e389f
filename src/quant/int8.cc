// SPDX-License-Identifier: Apache-2.0
// The scheme int8: symmetric round-to-nearest to -128..127, one scale per row and group of columns.
#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

QuantizedMatrix quantize_int8(std::span<const float> weights, int64_t rows, int64_t cols,
                              DType dtype, int group_size) {
  return round_to_nearest(weights, rows, cols, dtype, {8, group_size});
}

const QuantMethodRegistration kInt8Registration({.name = "int8",
                                                 .description = "8-bit integers, symmetric, "
                                                                "round-to-nearest",
                                                 .bits = 8,
                                                 .quantize = &quantize_int8});

}  // namespace
}  // namespace vitrine::quant
