// SPDX-License-Identifier: Apache-2.0
// One instantiation for each element format, a translation unit each.
#pragma once

#include "kernels/cuda/attention/attention_mma.h"

namespace vitrine::kernels::cuda {

template <FloatFormat kFormat>
Status launch_attention(const AttentionArguments& arguments, AttentionQueries queries,
                        Stream stream);

extern template Status launch_attention<FloatFormat::kF32>(const AttentionArguments&,
                                                           AttentionQueries, Stream);
extern template Status launch_attention<FloatFormat::kF16>(const AttentionArguments&,
                                                           AttentionQueries, Stream);
extern template Status launch_attention<FloatFormat::kBF16>(const AttentionArguments&,
                                                            AttentionQueries, Stream);

/// Launches attention over integer keys and values.
Status launch_attention_i16(const AttentionArguments& arguments, AttentionQueries queries,
                            Stream stream);

template <FloatFormat kFormat>
Status launch_attention_mma(const AttentionArguments& arguments, MmaRows rows, Stream stream);

extern template Status launch_attention_mma<FloatFormat::kF16>(const AttentionArguments&, MmaRows,
                                                               Stream);
extern template Status launch_attention_mma<FloatFormat::kBF16>(const AttentionArguments&, MmaRows,
                                                                Stream);

}  // namespace vitrine::kernels::cuda
