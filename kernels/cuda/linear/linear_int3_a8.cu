// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/linear/launch_shape.h"

namespace vitrine::kernels::cuda {

template Status launch_shape<PackedKind::kInt3, ActivationFormat::kInt8>(const ProductArguments&,
                                                                         const ProductTuning&,
                                                                         uint32_t, Stream);

}  // namespace vitrine::kernels::cuda
