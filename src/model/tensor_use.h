// SPDX-License-Identifier: Apache-2.0
// Which of a checkpoint's tensors a model's graph reads, which it may do without, and which nothing
// asks for: those mean that the config describes another model.
#pragma once

#include <string_view>

#include "checkpoint/model_config.h"
#include "ops/graph.h"
#include "vitrine/tensor_use.h"

namespace vitrine::model {

/// `graph` is the whole model's, whose config this is. Throws kBadFile with the first names where
/// tensors are unused, unless some are missing, which whoever reads them says; `lenient`: logs it
/// instead.
TensorUse find_tensor_use(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ops::Graph& graph, bool lenient);

/// Returns what a tensor that the model runs without is for, as "vision and audio"; null for
/// others.
const char* purpose_beside_model(std::string_view name, const ModelConfig& config);

}  // namespace vitrine::model
