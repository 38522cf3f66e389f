// SPDX-License-Identifier: Apache-2.0
// Private to the room: what the schemes of 4-bit floats share.
#pragma once

#include <functional>

#include "round_to_nearest.h"

namespace vitrine::quant {

/// Chooses the scale of a group from its largest |weight|.
using Fp4Scale = std::function<float(float largest)>;

/// Rounds each weight to the nearest E2M1 number times its group's scale over `divisor`. Throws
/// kInvalidArgument as quantize_matrix does.
QuantizedMatrix round_to_fp4(std::span<const float> weights, int64_t rows, int64_t cols,
                             DType dtype, int group_size, float divisor, const Fp4Scale& scale_of);

}  // namespace vitrine::quant
