// SPDX-License-Identifier: Apache-2.0
#include "logprobs.h"

#include <algorithm>

#include "sample/best_tokens.h"
#include "sample/scan.h"

namespace vitrine {

TokenLogprobs token_logprobs(std::span<const float> logits, int32_t token, int num_best) {
  const float largest = *std::ranges::max_element(logits);
  const double log_total = log_sum_beside(logits, largest);
  const auto logprob = [&](int32_t id) {
    return double{logits[static_cast<size_t>(id)]} - double{largest} - log_total;
  };
  const float own = logits[static_cast<size_t>(token)];
  TokenLogprobs result{token, logprob(token), {}, 1};
  for (const float logit : logits) result.rank += logit > own ? 1 : 0;
  if (num_best == 0) return result;
  BestTokens best;
  for (const int32_t id : best.find(logits, static_cast<size_t>(num_best))) {
    result.best.emplace_back(id, logprob(id));
  }
  return result;
}

}  // namespace vitrine
