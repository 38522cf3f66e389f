// SPDX-License-Identifier: Apache-2.0
// Included by linear_*.cu, each of which instantiates launch_shape once.
#pragma once

#include "kernels/cuda/linear/linear_shapes.h"
#include "kernels/cuda/linear/product.h"
#include "kernels/cuda/linear/stream.h"

namespace vitrine::kernels::cuda {

template <typename P, ActivationFormat kActivations, int kRowTiles, int kTokenTiles>
Status launch_stream(const ProductArguments& arguments, const ProductTuning& tuning,
                     uint32_t blocks_y, Stream stream) {
  using Whole = StreamShape<P, kActivations, kRowTiles, kTokenTiles, false>;
  using Sliced = StreamShape<P, kActivations, kRowTiles, kTokenTiles, true>;
  const PackedLayout& layout = arguments.layout;
  static_assert(Whole::ring_bytes(largest_layout<P>()) <= kMaxSharedBytes);
  StreamArguments a{arguments};
  a.tile_bytes = layout.tile_bytes();
  a.exchange_stride = Sliced::exchange_stride(layout);
  while (1 << a.exchange_shift < Sliced::kTokens && 1 << a.exchange_shift < tuning.tokens) {
    ++a.exchange_shift;
  }
  const auto bytes = [&] {
    return Sliced::ring_bytes(layout) +
           Sliced::exchange_bytes(layout, a.slice_shift, a.exchange_shift);
  };
  while (1 << a.slice_shift < tuning.slices) ++a.slice_shift;
  while (a.slice_shift > 0 && (bytes() > kMaxSharedBytes || 1 << a.slice_shift > layout.chunks)) {
    --a.slice_shift;
  }
  a.slice_chunks = divide_up(layout.chunks, 1 << a.slice_shift);
  const Dim3 grid = {
      static_cast<uint32_t>(divide_up(layout.tiles, Sliced::kWarps >> a.slice_shift)), blocks_y};
  if (a.slice_shift == 0) {
    return launch(stream_kernel<Whole>, grid, Whole::kThreads,
                  static_cast<size_t>(Whole::ring_bytes(layout)), stream, a);
  }
  return launch(stream_kernel<Sliced>, grid, Sliced::kThreads, static_cast<size_t>(bytes()), stream,
                a);
}

template <typename Shape>
Status launch_product(const ProductArguments& arguments, uint32_t blocks_y, Stream stream) {
  static_assert(Shape::shared_bytes(largest_layout<typename Shape::P>()) <= kMaxSharedBytes);
  const int tiles_per_block = Shape::kWarps * (arguments.gated ? 1 : Shape::kRowTiles);
  const auto blocks_x = static_cast<uint32_t>(divide_up(arguments.layout.tiles, tiles_per_block));
  return launch(product_kernel<Shape>, {blocks_x, blocks_y}, Shape::kThreads,
                static_cast<size_t>(Shape::shared_bytes(arguments.layout)), stream, arguments);
}

/// The shapes of one packing. gate_up has one tile of each matrix a warp.
template <typename P, ActivationFormat kActivations>
Status launch_packing(const ProductArguments& a, const ProductTuning& tuning, uint32_t blocks_y,
                      Stream stream) {
  switch (tuning.tokens_per_tile) {
    case 8:
      return a.gated ? launch_stream<P, kActivations, 2, 1>(a, tuning, blocks_y, stream)
                     : launch_stream<P, kActivations, 1, 1>(a, tuning, blocks_y, stream);
    case 16:
      return a.gated ? launch_stream<P, kActivations, 2, 2>(a, tuning, blocks_y, stream)
                     : launch_stream<P, kActivations, 1, 2>(a, tuning, blocks_y, stream);
    default: return launch_product<ProductShape<P, kActivations, 32, 2, 3>>(a, blocks_y, stream);
  }
}

template <PackedKind kKind, ActivationFormat kActivations>
Status launch_shape(const ProductArguments& arguments, const ProductTuning& tuning,
                    uint32_t blocks_y, Stream stream) {
  if constexpr (kKind == PackedKind::kInt4 || kKind == PackedKind::kInt3 ||
                kKind == PackedKind::kInt8) {
    switch (arguments.layout.group_size) {
      case 32:
        return launch_packing<Packing<kKind, 4>, kActivations>(arguments, tuning, blocks_y, stream);
      case 64:
        return launch_packing<Packing<kKind, 2>, kActivations>(arguments, tuning, blocks_y, stream);
      default:
        return launch_packing<Packing<kKind, 1>, kActivations>(arguments, tuning, blocks_y, stream);
    }
  } else {
    constexpr bool kIsWhole = kKind == PackedKind::kBF16 || kKind == PackedKind::kE4M3;
    return launch_packing<Packing<kKind, kIsWhole ? 1 : 4>, kActivations>(arguments, tuning,
                                                                          blocks_y, stream);
  }
}

}  // namespace vitrine::kernels::cuda
