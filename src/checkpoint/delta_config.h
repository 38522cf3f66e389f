// SPDX-License-Identifier: Apache-2.0
// Reader of the config.json of models with Gated DeltaNet (Qwen3-Next and Qwen3.5).
#pragma once

#include "fields.h"
#include "model_config.h"

namespace vitrine::checkpoint {

/// Reads heads, RoPE over a part of each, which layers keep a state and its sizes, and feed-forward
/// blocks. `may_be_whole`: a file may hold LinearLayout::kConvertedWhole. Throws kBadFile,
/// kUnsupported naming the field.
void read_delta_config(const Fields& fields, ModelConfig& config, bool may_be_whole);

}  // namespace vitrine::checkpoint
