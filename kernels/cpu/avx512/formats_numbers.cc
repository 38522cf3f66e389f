// SPDX-License-Identifier: Apache-2.0
// Block formats of numbers in their own bits, and of sixteen values.
#include "blocks.h"

namespace vitrine::kernels::avx512 {

const FormatKernels* find_numbers(BlockFormat format) {
  using Formats = blocks::FormatList<blocks::Q5_0, blocks::Q5_1, blocks::Q3_K, blocks::Q5_K,
                                     blocks::Iq4Nl, blocks::Iq4Xs>;
  return find_block_kernels(format, Formats{});
}

}  // namespace vitrine::kernels::avx512
