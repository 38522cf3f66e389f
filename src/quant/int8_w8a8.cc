// SPDX-License-Identifier: Apache-2.0
// The schemes int8-w8a8 and int8-w8a8-static: symmetric 8-bit integers, one scale a row, for
// whoever rounds activations to 8 bits, too: a scale for each token, or one that the folder holds.
#include "round_to_nearest.h"

namespace vitrine::quant {
namespace {

QuantizedMatrix quantize_rows(std::span<const float> weights, int64_t rows, int64_t cols,
                              DType dtype, int /*group_size*/) {
  return round_to_nearest(weights, rows, cols, dtype, {8, kWholeRow});
}

QuantMethod w8a8(const char* name, const char* description, ActivationUse activations) {
  return {.name = name,
          .description = description,
          .bits = 8,
          .layout = "int-quantized",
          .fixed_group = kWholeRow,
          .activations = activations,
          .quantize = &quantize_rows};
}

const QuantMethodRegistration kDynamicRegistration(
    w8a8("int8-w8a8", "8-bit integers, a scale for each row, and activations of 8 bits",
         ActivationUse::kDynamic));
const QuantMethodRegistration kStaticRegistration(w8a8(
    "int8-w8a8-static", "8-bit integers, a scale for each row, and one for activations of 8 bits",
    ActivationUse::kStatic));

}  // namespace
}  // namespace vitrine::quant
