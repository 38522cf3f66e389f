// SPDX-License-Identifier: Apache-2.0
// Private to the room: weights and responsibilities of one token, for fitting.
#pragma once

#include <span>

#include "vitrine/federation.h"

namespace vitrine::federation {

/// Throws kInvalidArgument where there is nothing to fit on, where the data are of other sizes than
/// they say, and for a token that no specialist has a log-probability of.
void check_data(const FitData& data);
/// Throws as check_data(), and where a gate, whose weights `spec` has, cannot read the hidden
/// states.
void check_gate(const CombinerSpec& spec, const FitData& data);

/// The weights that a mixture or a gate gives the specialists at each token. Keeps references.
class WeightsAt {
 public:
  WeightsAt(const CombinerSpec& spec, const FitData& data) : spec_(spec), data_(data) {}
  void at(size_t token, std::span<double> weights) const;

 private:
  const CombinerSpec& spec_;
  const FitData& data_;
};

void softmax(std::span<double> values);

/// log(sum(weights * exp(logprobs))), and what part of the sum each specialist is.
double joint_log(std::span<const double> weights, const float* logprobs, std::span<double> shares);

}  // namespace vitrine::federation
