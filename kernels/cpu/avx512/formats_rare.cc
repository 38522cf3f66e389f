// SPDX-License-Identifier: Apache-2.0
// Block formats of few values.
#include "blocks.h"

namespace vitrine::kernels::avx512 {

const FormatKernels* find_rare(BlockFormat format) {
  using Formats =
      blocks::FormatList<blocks::Tq1_0, blocks::Tq2_0, blocks::Q1_0, blocks::Q2_0, blocks::Nvfp4>;
  return find_block_kernels(format, Formats{});
}

}  // namespace vitrine::kernels::avx512
