// Sums into the residual stream (docs/numerics.md, "Sum over experts"): the CPU's order and
// roundings, so the same bits.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// residual[i] += multiplier * x[i], each product and sum rounded. x, residual: [count] float32 on
/// the device, 16-byte aligned.
Status add_scaled(const float* x, float multiplier, int64_t count, float* residual, Stream stream);

}  // namespace vitrine::kernels::cuda
