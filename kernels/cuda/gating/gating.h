// SPDX-License-Identifier: Apache-2.0
// Hidden rows of a feed-forward block of what its gate and up gave, where these stand by
// themselves.
#pragma once

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// out[i] of gate[i] and up[i], `count` of each, by silu or by gpt_oss's clamped gating
/// (docs/numerics.md): float32, or rounded to bf16. The bits of the CPU's apply_gating and, of
/// silu, of a fused product. Refuses other kinds and formats.
Status apply_gating(const Gating& gating, const float* gate, const float* up, int64_t count,
                    void* out, FloatFormat out_format, Stream stream);

}  // namespace vitrine::kernels::cuda
