// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "vitrine/statistics.h"

namespace vitrine {

namespace {

using TopTokens = std::vector<std::pair<int32_t, float>>;

/// The list by ascending ids. Throws kInvalidArgument where it cannot be one of a distribution.
TopTokens sorted_by_id(std::span<const std::pair<int32_t, float>> tokens) {
  constexpr double kMostMass = 1 + 1e-3;
  TopTokens sorted(tokens.begin(), tokens.end());
  std::ranges::sort(sorted, {}, &std::pair<int32_t, float>::first);
  double mass = 0;
  for (size_t i = 0; i < sorted.size(); ++i) {
    mass += std::exp(static_cast<double>(sorted[i].second));
    if (i > 0 && sorted[i].first == sorted[i - 1].first) {
      throw Error(ErrorKind::kInvalidArgument, "token " + std::to_string(sorted[i].first) +
                                                   " stands twice in a list of the most probable "
                                                   "ones; expected each once");
    }
  }
  if (!(mass <= kMostMass)) {
    throw Error(ErrorKind::kInvalidArgument,
                "probabilities of the most probable tokens add up to " + std::to_string(mass) +
                    "; expected at most 1");
  }
  return sorted;
}

}  // namespace

double top_divergence(std::span<const std::pair<int32_t, float>> first,
                      std::span<const std::pair<int32_t, float>> second) {
  const TopTokens p = sorted_by_id(first), q = sorted_by_id(second);
  double divergence = 0, p_rest = 1, q_rest = 1, cells = 0;
  for (auto one = p.begin(), other = q.begin(); one != p.end() && other != q.end();) {
    if (one->first != other->first) {
      ++(one->first < other->first ? one : other);
      continue;
    }
    const double p_logprob = one->second, q_logprob = other->second;
    const double mass = std::exp(p_logprob);
    if (mass > 0) divergence += mass * (p_logprob - q_logprob);
    p_rest -= mass;
    q_rest -= std::exp(q_logprob);
    ++cells;
    ++one;
    ++other;
  }
  // Each log-probability is rounded to a float: less mass than that is not known to be there.
  const double known = (cells + 1) * 1e-7;
  p_rest = std::max(p_rest, known);
  q_rest = std::max(q_rest, known);
  return std::max(0.0, divergence + p_rest * std::log(p_rest / q_rest));
}

}  // namespace vitrine
