// SPDX-License-Identifier: Apache-2.0
// Products of quantized matrices with rows of floats, for what is not to be rounded to int8: the
// numbers are made floats on their way.
#pragma once

#include "cpu_kernels.h"

namespace vitrine::kernels {

/// The widest matrix that has such products.
inline constexpr int64_t kMaxWidenedCols = 512;
/// Whether a matrix has them: not floats, nor two bits with minimums of their own for halves of a
/// group, nor columns that are no whole units of 32.
bool has_widened_products(const Weight& weight);

/// As CpuKernels::linear without bias and residual, of Activations::values: the dots of the matrix
/// of floats that embed_row gives row by row.
using WidenedProduct = void (*)(const Weight& weight, int64_t row_begin, int64_t row_end,
                                const Activations& input, const RowMap& rows, float* out,
                                int64_t out_stride);

/// That of a table's instruction set.
WidenedProduct widened_product(const CpuKernels& table);

namespace portable {
void linear_widened(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, float* out, int64_t out_stride);
}
namespace avx2 {
void linear_widened(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, float* out, int64_t out_stride);
}
namespace avx512 {
void linear_widened(const Weight& weight, int64_t row_begin, int64_t row_end,
                    const Activations& input, const RowMap& rows, float* out, int64_t out_stride);
}

}  // namespace vitrine::kernels
