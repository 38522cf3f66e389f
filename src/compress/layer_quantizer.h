// SPDX-License-Identifier: Apache-2.0
// Private to the room: the matrices of a model's layers, quantized by what a text makes of them.
#pragma once

#include <functional>

#include "layer_method.h"

namespace vitrine::compress {

/// Calls `on_matrix` with each matrix of the layers that the plan quantizes and that the texts
/// reach, layer by layer; each layer has seen what the quantized ones before it make. Those that no
/// token reached are left out. `folds` are what the method decides on. Throws what Engine::load and
/// its steps throw, and `on_matrix`.
void quantize_by_layers(const Checkpoint& checkpoint, const QuantizePlan& plan,
                        const QuantizeOptions& options, Folds& folds,
                        const std::function<void(const CalibratedMatrix&)>& on_matrix);

}  // namespace vitrine::compress
