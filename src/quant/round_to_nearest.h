// Private to the room: what the schemes share, and how a scheme registers itself.
#pragma once

#include "vitrine/quant.h"

namespace vitrine::quant {

/// Symmetric round-to-nearest with `bits` of 4 or 8; see quantize_matrix.
QuantizedMatrix round_to_nearest(std::span<const float> weights, int64_t rows, int64_t cols,
                                 DType dtype, int bits, int group_size);

/// A static object of this type makes a method known by its name.
struct QuantMethodRegistration {
  explicit QuantMethodRegistration(QuantMethod method);
};

}  // namespace vitrine::quant
