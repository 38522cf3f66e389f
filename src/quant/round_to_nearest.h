// SPDX-License-Identifier: Apache-2.0
// Private to the room: what the schemes share, and how a scheme registers itself.
#pragma once

#include "vitrine/quant.h"

namespace vitrine::quant {

/// Round-to-nearest; see quantize_matrix.
QuantizedMatrix round_to_nearest(std::span<const float> weights, int64_t rows, int64_t cols,
                                 DType dtype, const QuantScheme& scheme);

/// float32 rounded to what `dtype` (F32, F16 or BF16) can hold.
float round_to_dtype(float value, DType dtype);
/// torch.finfo(dtype).eps: compressed-tensors' scale of a group of zeros.
float dtype_epsilon(DType dtype);
/// Throws kInvalidArgument for another dtype and for sizes that disagree.
void check_weights(std::span<const float> weights, int64_t rows, int64_t cols, DType dtype);
/// The error for a weight that is infinite or no number.
Error not_finite(int64_t row, int64_t col);

/// A static object of this type makes a method known by its name.
struct QuantMethodRegistration {
  explicit QuantMethodRegistration(const QuantMethod& method);
};

}  // namespace vitrine::quant
