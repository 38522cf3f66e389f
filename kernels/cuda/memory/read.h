// SPDX-License-Identifier: Apache-2.0
// Memory read and nothing made of it: how fast this GPU gives bytes.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// Blocks of the launch; `sums` has as many.
inline constexpr int kReadBlocks = 2048;

/// sums[b] = the exclusive or of the 32-bit words that block b reads; all of them together: of
/// `words` words (a multiple of 4) at `data`, 16-byte aligned, each read once.
Status read_words(const void* data, int64_t words, uint32_t* sums, Stream stream);

}  // namespace vitrine::kernels::cuda
