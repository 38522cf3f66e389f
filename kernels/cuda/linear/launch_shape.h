// SPDX-License-Identifier: Apache-2.0
// Included by linear_*.cu, each of which instantiates launch_shape once.
#pragma once

#include "kernels/cuda/linear/linear_shapes.h"
#include "kernels/cuda/linear/product.h"

namespace vitrine::kernels::cuda {

// Two tiles of rows a warp where there are many tokens (a loaded activation serves two products),
// and for gate_up (one tile of each matrix).
template <PackedKind kKind, ActivationFormat kActivations>
Status launch_shape(const ProductArguments& arguments, const ProductTuning& tuning,
                    uint32_t blocks_y, Stream stream) {
  // Fewer stages where a chunk has more bytes: as many are under way.
  constexpr int kUnits = largest_layout<kKind>().chunk_bytes / kPackedUnitBytes;
  constexpr int kLess = kUnits >= 8 ? 4 : kUnits >= 4 ? 2 : 0;
  const auto start = [&]<int kTokens, int kRowTiles, int kSlices, int kMaxStages>() {
    constexpr int kStages = kMaxStages - kLess > 3 ? kMaxStages - kLess : 3;
    return launch_product<ProductShape<kKind, kActivations, kTokens, kRowTiles, kSlices, kStages>>(
        arguments, blocks_y, stream);
  };
  switch (tuning.tokens_per_tile) {
    case 8:
      if (tuning.split_k) {
        return arguments.gated ? start.template operator()<8, 2, 4, 4>()
                               : start.template operator()<8, 1, 4, 6>();
      }
      return arguments.gated ? start.template operator()<8, 2, 1, 6>()
                             : start.template operator()<8, 1, 1, 8>();
    case 16:
      return arguments.gated ? start.template operator()<16, 2, 1, 5>()
                             : start.template operator()<16, 1, 1, 6>();
    case 32: return start.template operator()<32, 2, 1, 4>();
    default: return start.template operator()<64, 2, 1, 3>();
  }
}

}  // namespace vitrine::kernels::cuda
