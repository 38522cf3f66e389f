// SPDX-License-Identifier: Apache-2.0
// Quantized matrix products of the AVX2 table.
#include "quantized.h"

namespace vitrine::kernels::avx2 {

void linear_quantized(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                      const Activations& input, const RowMap& rows, const Target& target) {
  quantized_product<MaddubsDot>(weight, up, row_begin, row_end, input, rows, target);
}

}  // namespace vitrine::kernels::avx2
