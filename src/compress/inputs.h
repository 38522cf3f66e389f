// SPDX-License-Identifier: Apache-2.0
// Private to the room: what the rows that come to a layer's matrices say of their columns.
#pragma once

#include <functional>
#include <vector>

#include "layer_method.h"

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

/// Rounds each of the layer's quantized matrices that tokens reach to the nearest numbers, as they
/// are folded, and finds the range of their inputs where the folder has a scale of these.
void round_layer(LayerWork& work);

/// Returns the magnitude that the folder's scale of a matrix's inputs is to reach, of its rows as
/// folded norms make them; 0 for a scheme without such a scale. That is the largest one for floats;
/// for integers the one with the least squared error, what lies beyond being cut off. An expert's
/// down has a range of its own where enough tokens reach it.
float input_range(const LayerWork& work, const PlannedTensor& planned, const SiteMatrix& matrix);

}  // namespace vitrine::compress
