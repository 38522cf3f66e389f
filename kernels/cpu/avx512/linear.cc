// SPDX-License-Identifier: Apache-2.0
// Entry points of the AVX-512 matrix products.
#include "linear.h"

namespace vitrine::kernels::avx512 {

void linear(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
            const RowMap& rows, const float* bias, const float* residual_scale, float* out,
            int64_t out_stride) {
  const Target target{rows.out_rows, bias, residual_scale, out, out_stride};
  if (!is_float_format(weight.format)) {
    linear_quantized(weight, nullptr, row_begin, row_end, input, rows, target);
  } else {
    linear_float(weight, nullptr, row_begin, row_end, input, rows, target);
  }
}

void gate_up(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
             const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  const Target target{rows.out_rows, nullptr, nullptr, out, out_stride};
  if (!is_float_format(gate.format)) {
    linear_quantized(gate, &up, row_begin, row_end, input, rows, target);
  } else {
    linear_float(gate, &up, row_begin, row_end, input, rows, target);
  }
}

}  // namespace vitrine::kernels::avx512
