// SPDX-License-Identifier: Apache-2.0
// What becomes of a finished dot.
#pragma once

#include "kernels/cuda/device_math.h"
#include "kernels/cuda/linear/linear.h"

namespace vitrine::kernels::cuda {

/// Writes `value` for weight row `row` of an output row.
VITRINE_DEVICE void store_value(const Epilogue& epilogue, int32_t out_row, int64_t row,
                                float value) {
  const int64_t at = out_row * epilogue.out_stride + row;
  if (epilogue.out_format == FloatFormat::kBF16) {
    static_cast<uint16_t*>(epilogue.out)[at] = narrow_bf16(value);
    return;
  }
  float* out = static_cast<float*>(epilogue.out) + at;
  *out = epilogue.adds_residual ? *out + epilogue.residual_scale * value : value;
}

VITRINE_DEVICE void finish_linear(const Epilogue& epilogue, int32_t expert, int32_t out_row,
                                  int64_t row, float dot) {
  if (epilogue.bias != nullptr) dot = dot + epilogue.bias[expert * epilogue.expert_bias + row];
  store_value(epilogue, out_row, row, dot);
}

VITRINE_DEVICE void finish_gate_up(const Epilogue& epilogue, int32_t out_row, int64_t row,
                                   float gate, float up) {
  store_value(epilogue, out_row, row, silu(gate) * up);
}

}  // namespace vitrine::kernels::cuda
