// SPDX-License-Identifier: Apache-2.0
// Private to the room: what the rows that come to a layer's matrices say of their columns.
#pragma once

#include <functional>
#include <vector>

#include "input_range.h"

namespace vitrine::compress {

/// The products of the rows that some matrices share.
struct Inputs {
  std::vector<float> hessian;  ///< [width, width]; empty where no row came
  int64_t width = 0;
  int64_t rows_seen = 0;
  double shrinkage = 0;
};

/// Calls `visit` with those of the layer's quantized matrices that have the same inputs, and with
/// these. An expert that few tokens reach has too few rows to tell its columns apart: the rows of
/// all tokens stand in for those that it lacks. Groups that no row reached are left out.
void for_each_inputs(LayerWork& work,
                     const std::function<void(std::span<const SiteMatrix* const> matrices,
                                              const Inputs& inputs)>& visit);

/// Rounds one of the layer's quantized matrices to the nearest numbers, as it is folded, and finds
/// the range of its inputs where the folder has a scale of these. Does nothing for a module that is
/// not quantized, and where no token comes.
void round_matrix(LayerWork& work, InputRanges& ranges, const SiteMatrix& matrix);
/// Does so with all of them.
void round_layer(LayerWork& work);

}  // namespace vitrine::compress
