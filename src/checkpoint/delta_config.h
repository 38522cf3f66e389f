// SPDX-License-Identifier: Apache-2.0
// Private to the room: fields of Gated DeltaNet (qwen3_next, qwen3_5).
#pragma once

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Whether the families of `model_type` have layers with a state.
bool has_linear_layers(const ModelConfig& config);

/// Which layers have one, and its sizes. Throws kBadFile, kUnsupported naming the field.
void read_linear_layers(const Fields& fields, ModelConfig& config);

}  // namespace vitrine::checkpoint
