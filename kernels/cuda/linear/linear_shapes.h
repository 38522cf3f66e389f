// SPDX-License-Identifier: Apache-2.0
// The shapes of the family; each file of linear_*.cu instantiates those of one kind and format.
#pragma once

#include "kernels/cuda/linear/product_arguments.h"

namespace vitrine::kernels::cuda {

/// Launches the shape of this kind, activation format and tuning.
template <PackedKind kKind, ActivationFormat kActivations>
Status launch_shape(const ProductArguments& arguments, const ProductTuning& tuning,
                    uint32_t blocks_y, Stream stream);

#define VITRINE_PRODUCT_KIND(kind, activations)                                         \
  extern template Status launch_shape<PackedKind::kind, ActivationFormat::activations>( \
      const ProductArguments&, const ProductTuning&, uint32_t, Stream);
VITRINE_PRODUCT_KIND(kInt4, kInt8)
VITRINE_PRODUCT_KIND(kInt3, kInt8)
VITRINE_PRODUCT_KIND(kInt8, kInt8)
VITRINE_PRODUCT_KIND(kMxfp4, kInt8)
VITRINE_PRODUCT_KIND(kQ6K, kInt8)
VITRINE_PRODUCT_KIND(kQ2K, kInt8)
VITRINE_PRODUCT_KIND(kInt4, kBF16)
VITRINE_PRODUCT_KIND(kInt3, kBF16)
VITRINE_PRODUCT_KIND(kInt8, kBF16)
VITRINE_PRODUCT_KIND(kMxfp4, kBF16)
VITRINE_PRODUCT_KIND(kBF16, kBF16)
VITRINE_PRODUCT_KIND(kE4M3, kBF16)
VITRINE_PRODUCT_KIND(kE4M3, kE4M3)
#undef VITRINE_PRODUCT_KIND

}  // namespace vitrine::kernels::cuda
