// Private to the room: what the schemes share, and how a scheme registers itself.
#pragma once

#include "vitrine/quant.h"

namespace vitrine::quant {

/// Round-to-nearest; see quantize_matrix.
QuantizedMatrix round_to_nearest(std::span<const float> weights, int64_t rows, int64_t cols,
                                 DType dtype, const QuantScheme& scheme);

/// A static object of this type makes a method known by its name.
struct QuantMethodRegistration {
  explicit QuantMethodRegistration(QuantMethod method);
};

}  // namespace vitrine::quant
