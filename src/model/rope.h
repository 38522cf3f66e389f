// SPDX-License-Identifier: Apache-2.0
// The rotary frequencies of a config, scaled as it says.
#pragma once

#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// head_dim / 2 frequencies in radians a position, computed in float32 as transformers does.
std::vector<float> rope_frequencies(const ModelConfig& config);

/// What cosine and sine are multiplied with: 1 but for YaRN and LongRoPE.
float rope_attention_factor(const ModelConfig& config);

}  // namespace vitrine::model
