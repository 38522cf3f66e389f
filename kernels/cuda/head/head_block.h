// SPDX-License-Identifier: Apache-2.0
// The launch of the head's first kernel, for the second one's file.
#pragma once

#include "kernels/cuda/head/head.h"

namespace vitrine::kernels::cuda {

/// head.blocks of `rows` rows; sums and hash only where something is recorded.
Status launch_head_blocks(const Head& head, int32_t rows, Stream stream);

}  // namespace vitrine::kernels::cuda
