// SPDX-License-Identifier: Apache-2.0
// Private to the library: the sum that log-probabilities of a row of logits are made of.
#pragma once

#include <span>

namespace vitrine::quality {

/// Returns log(sum of exp(logit - largest)), summed in double in the order of ids.
double log_sum_beside(std::span<const float> logits, double largest);

}  // namespace vitrine::quality
