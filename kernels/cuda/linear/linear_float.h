// SPDX-License-Identifier: Apache-2.0
// Products of float matrices in float32, with the CPU kernels' bits: the router, float32 models,
// and any float matrix whose result must be the CPU's. (Large bf16 matrices have a tensor-core form
// in linear.h, of other bits.)
#pragma once

#include "kernels/cuda/linear/linear.h"

namespace vitrine::kernels::cuda {

/// Row-major on the device, as in a checkpoint; of experts, one behind another.
struct FloatMatrix {
  FloatFormat format = FloatFormat::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* data = nullptr;
  const float* scales =
      nullptr;  // kE4M3: [rows, groups of 128 columns], of experts one behind another
};

/// Float32 rows, by the same map as `Rows` (whose activations and format are not used).
struct FloatRows {
  const float* values = nullptr;  // [count or fewer, stride]
  int64_t stride = 0;
  Rows map;
  int32_t tile_rows = 0;  // grouped: rows of a tile, a multiple of 4
};

/// out = weight . x by 16-lane dots (docs/numerics.md), with the epilogue.
Status linear_float(const FloatMatrix& weight, int32_t experts, const FloatRows& rows,
                    const Epilogue& epilogue, Stream stream);

/// out = silu(gate . x) * (up . x); the matrices have one shape and format.
Status gate_up_float(const FloatMatrix& gate, const FloatMatrix& up, int32_t experts,
                     const FloatRows& rows, const Epilogue& epilogue, Stream stream);

}  // namespace vitrine::kernels::cuda
