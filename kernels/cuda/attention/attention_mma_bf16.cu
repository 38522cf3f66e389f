// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention/attention_mma_kernel.h"

namespace vitrine::kernels::cuda {

template Status launch_attention_mma<FloatFormat::kBF16>(const AttentionArguments&, MmaRows,
                                                         Stream);

}  // namespace vitrine::kernels::cuda
