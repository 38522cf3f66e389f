// SPDX-License-Identifier: Apache-2.0
// The rotary frequencies of a config, scaled as it says.
#pragma once

#include <vector>

#include "checkpoint/model_config.h"

namespace vitrine::model {

/// Names the layers that frequencies are for: gemma4 has others for layers that slide.
enum class RopeKind { kOwn, kSliding };

/// Returns the number of frequencies of a head: half of the elements that are rotated.
int64_t rope_half(const ModelConfig& config, RopeKind kind);

/// Returns rope_half frequencies in radians a position, computed in float32 as transformers does.
std::vector<float> rope_frequencies(const ModelConfig& config, RopeKind kind);

/// Returns what cosine and sine are multiplied with: 1 but for YaRN and LongRoPE.
float rope_attention_factor(const ModelConfig& config);

}  // namespace vitrine::model
