// One instantiation for each element format, a translation unit each.
#pragma once

#include "kernels/cuda/attention/attention.h"

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

}  // namespace vitrine::kernels::cuda
