// SPDX-License-Identifier: Apache-2.0
// Which instruction set's widened products belong to a table. Compiled without instruction-set
// flags.
#include <string_view>

#include "packed.h"
#include "widened_products.h"

namespace vitrine::kernels {

bool has_widened_products(const Weight& weight) {
  return !is_float_format(weight.format) && weight.format != WeightFormat::kQ2K &&
         weight.cols % kUnitCols == 0 && weight.cols <= kMaxWidenedCols;
}

WidenedProduct widened_product([[maybe_unused]] const CpuKernels& table) {
#if defined(VITRINE_KERNELS_X86)
  const std::string_view isa = table.isa;
  if (isa.starts_with("avx512")) return avx512::linear_widened;
  if (isa.starts_with("avx2")) return avx2::linear_widened;
#endif
  return portable::linear_widened;
}

}  // namespace vitrine::kernels
