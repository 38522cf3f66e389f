// SPDX-License-Identifier: Apache-2.0
// Private to the library: the sum that log-probabilities of a row of logits are made of.
#pragma once

#include <span>

namespace vitrine::quality {

/// Returns log(sum of exp(logit - largest)), summed in double in one order, whose bits are the same
/// on every machine. `largest` is the largest of them.
double log_sum_beside(std::span<const float> logits, float largest);

}  // namespace vitrine::quality
