// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "serve/policy.h"

namespace vitrine::serve {

namespace {

/// The lowest priority first, as vLLM counts it; of equals the one that came first.
class LowestPriority final : public Policy {
 public:
  size_t choose(std::span<const WaitingRequest> waiting, double /*seconds*/) override {
    return static_cast<size_t>(std::ranges::min_element(waiting, {}, &WaitingRequest::priority) -
                               waiting.begin());
  }
};

VITRINE_REGISTER_POLICY("priority", LowestPriority);

}  // namespace

}  // namespace vitrine::serve
