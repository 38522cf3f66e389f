// SPDX-License-Identifier: Apache-2.0
// Log-probabilities of a row of logits, for those who ask for them beside the recorder's.
#pragma once

#include <span>

#include "vitrine/engine.h"

namespace vitrine {

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int num_best);

}  // namespace vitrine
