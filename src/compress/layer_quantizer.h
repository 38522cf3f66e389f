// SPDX-License-Identifier: Apache-2.0
// Private to the room: the matrices of a model's layers, quantized by what a text makes of them.
#pragma once

#include <functional>

#include "kept_layers.h"
#include "layer_method.h"

namespace vitrine::compress {

/// Calls `on_matrix` with each matrix of the layers that the plan quantizes and that the texts
/// reach, layer by layer; each layer has seen what the quantized ones before it make. Those that no
/// token reached are left out. `model` is the folder that the engine runs: the checkpoint's, or
/// what write_widened() made of it. `folds` are what the method decides on. A layer that `kept` has
/// is taken from there, and others are kept in it; null: none is. Returns how many were taken.
/// Throws what Engine::load and its steps throw, `on_matrix`, the host's progress and KeptLayers.
int64_t quantize_by_layers(const Checkpoint& checkpoint, const std::string& model,
                           const QuantizePlan& plan, const QuantizeOptions& options, Folds& folds,
                           KeptLayers* kept, ProgressTeller& progress,
                           const std::function<void(const CalibratedMatrix&)>& on_matrix);

}  // namespace vitrine::compress
