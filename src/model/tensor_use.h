// SPDX-License-Identifier: Apache-2.0
// Which of a checkpoint's tensors a model's graph reads, which it may do without, and which nothing
// asks for: those mean that the config describes another model.
#pragma once

#include <string_view>

#include "checkpoint/model_config.h"
#include "ops/graph.h"
#include "vitrine/tensor_use.h"

namespace vitrine::model {

/// Counts the tensors by their use. `graph` is that of the whole model of this config. Throws
/// kBadFile with the first names where tensors are unused, or logs it (`lenient`); does neither
/// where tensors are missing, since whoever reads these will say so.
TensorUse find_tensor_use(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ops::Graph& graph, bool lenient);

/// Returns what a tensor that the model runs without is for, as "vision and audio"; null for
/// others.
const char* purpose_beside_model(std::string_view name, const ModelConfig& config);

}  // namespace vitrine::model
