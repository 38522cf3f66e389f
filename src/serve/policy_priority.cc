// SPDX-License-Identifier: Apache-2.0
#include "serve/policy.h"

namespace vitrine::serve {

namespace {

/// The lowest priority first, as vLLM counts it; of equals the one that came first.
class LowestPriority final : public Policy {
 public:
  double rank(const WaitingRequest& request, double /*seconds*/) const override {
    return request.priority;
  }
};

VITRINE_REGISTER_POLICY("priority", LowestPriority);

}  // namespace

}  // namespace vitrine::serve
