// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "serve/policy.h"

namespace vitrine::serve {

namespace {

/// Highest response ratio next (Brinch Hansen, 1971), by the tokens that are not cached: who is
/// soon done goes soon, and who waits long goes, too.
class HighestResponseRatio final : public Policy {
 public:
  size_t choose(std::span<const WaitingRequest> waiting, double seconds_per_token) override {
    const auto ratio = [&](const WaitingRequest& one) {
      return one.waited / (static_cast<double>(one.uncached_tokens) * seconds_per_token);
    };
    return static_cast<size_t>(std::ranges::max_element(waiting, {}, ratio) - waiting.begin());
  }
};

VITRINE_REGISTER_POLICY("hrrn", HighestResponseRatio);

}  // namespace

}  // namespace vitrine::serve
