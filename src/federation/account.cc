// SPDX-License-Identifier: Apache-2.0
#include "federation/account.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace vitrine::federation {

JointScore account_of_mixture(std::span<const double> weights, std::span<SpecialistShare> shares) {
  double most = -std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].weight = weights[i];
    shares[i].share = std::log(weights[i]) + shares[i].logprob;
    most = std::max(most, shares[i].share);
  }
  double sum = 0;
  for (const SpecialistShare& share : shares) sum += std::exp(share.share - most);
  const double joint = most + std::log(sum);
  for (SpecialistShare& share : shares) share.share = std::exp(share.share - joint);
  return {joint, 0.0};
}

JointScore account_of_product(std::span<const double> weights, double log_normaliser,
                              std::span<SpecialistShare> shares) {
  double joint = -log_normaliser;
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].weight = weights[i];
    shares[i].share = weights[i] * shares[i].logprob;
    joint += shares[i].share;
  }
  return {joint, log_normaliser};
}

}  // namespace vitrine::federation
