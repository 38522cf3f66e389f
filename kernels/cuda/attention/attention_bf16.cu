// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attention/attention_kernel.h"

namespace vitrine::kernels::cuda {

template Status launch_attention<FloatFormat::kBF16>(const AttentionArguments&, AttentionQueries,
                                                     Stream);

}  // namespace vitrine::kernels::cuda
