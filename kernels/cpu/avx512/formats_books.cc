// SPDX-License-Identifier: Apache-2.0
// Block formats of books.
#include "blocks.h"

namespace vitrine::kernels::avx512 {

const FormatKernels* find_books(BlockFormat format) {
  using Formats = blocks::FormatList<blocks::Iq2Xxs, blocks::Iq2Xs, blocks::Iq2S, blocks::Iq3Xxs,
                                     blocks::Iq3S, blocks::Iq1S, blocks::Iq1M>;
  return find_block_kernels(format, Formats{});
}

}  // namespace vitrine::kernels::avx512
