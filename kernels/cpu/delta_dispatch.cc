// SPDX-License-Identifier: Apache-2.0
// Which instruction set's Gated DeltaNet belongs to a table. Compiled without instruction-set
// flags.
#include <string_view>

#include "delta_kernels.h"

namespace vitrine::kernels {

const DeltaKernels& delta_kernels([[maybe_unused]] const CpuKernels& table) {
#if defined(VITRINE_KERNELS_X86)
  const std::string_view isa = table.isa;
  if (isa.starts_with("avx512")) return avx512::kDeltaKernels;
  if (isa.starts_with("avx2")) return avx2::kDeltaKernels;
#endif
  return portable::kDeltaKernels;
}

}  // namespace vitrine::kernels
