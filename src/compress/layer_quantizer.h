// SPDX-License-Identifier: Apache-2.0
// Private to the room: the matrices of a model's layers, quantized by what a text makes of them.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "plan.h"

namespace vitrine::compress {

/// A matrix that was quantized by its inputs.
struct CalibratedMatrix {
  const PlannedTensor* planned = nullptr;
  std::span<const float> weights;  ///< of the source, [rows, cols]
  QuantizedMatrix matrix;
  int64_t rows_seen = 0;  ///< rows that it was multiplied with
  double shrinkage = 0;   ///< the share of all tokens in the products of an expert's rows
  double loss = 0;        ///< GptqResult::loss
  double damping = 0;     ///< that was taken
};

/// Calls `on_matrix` with each matrix of the layers that the plan quantizes to integers and that
/// the texts reach, layer by layer; each layer has seen what the quantized ones before it make.
/// Those that no token reached are left out. Throws what Engine::load and its steps throw, and
/// `on_matrix`.
void quantize_by_layers(const Checkpoint& checkpoint, const QuantizePlan& plan,
                        const QuantizeOptions& options,
                        const std::function<void(const CalibratedMatrix&)>& on_matrix);

}  // namespace vitrine::compress
