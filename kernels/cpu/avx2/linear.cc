// SPDX-License-Identifier: Apache-2.0
// Entry points of the AVX2 matrix products, without and with AVX-VNNI.
#include "linear.h"

namespace vitrine::kernels::avx2 {

void linear(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
            const RowMap& rows, const float* bias, const float* residual_scale, float* out,
            int64_t out_stride) {
  const Target target{rows.out_rows, bias, residual_scale, out, out_stride};
  const auto product = is_float_format(weight.format) ? linear_float : linear_quantized;
  product(weight, nullptr, row_begin, row_end, input, rows, target);
}

void gate_up(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
             const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  const Target target{rows.out_rows, nullptr, nullptr, out, out_stride};
  const auto product = is_float_format(gate.format) ? linear_float : linear_quantized;
  product(gate, &up, row_begin, row_end, input, rows, target);
}

void linear_vnni(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
                 const RowMap& rows, const float* bias, const float* residual_scale, float* out,
                 int64_t out_stride) {
  const Target target{rows.out_rows, bias, residual_scale, out, out_stride};
  const auto product = is_float_format(weight.format) ? linear_float : linear_quantized_vnni;
  product(weight, nullptr, row_begin, row_end, input, rows, target);
}

void gate_up_vnni(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, float* out, int64_t out_stride) {
  const Target target{rows.out_rows, nullptr, nullptr, out, out_stride};
  const auto product = is_float_format(gate.format) ? linear_float : linear_quantized_vnni;
  product(gate, &up, row_begin, row_end, input, rows, target);
}

}  // namespace vitrine::kernels::avx2
