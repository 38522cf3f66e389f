// SPDX-License-Identifier: Apache-2.0
#include "serve/policy.h"

namespace vitrine::serve {

namespace {

/// Highest response ratio next (Brinch Hansen, 1971), by the tokens that are not cached: who is
/// soon done goes soon, and who waits long goes, too.
class HighestResponseRatio final : public Policy {
 public:
  double rank(const WaitingRequest& request, double seconds_per_token) const override {
    return -request.waited / (static_cast<double>(request.uncached_tokens) * seconds_per_token);
  }
};

VITRINE_REGISTER_POLICY("hrrn", HighestResponseRatio);

}  // namespace

}  // namespace vitrine::serve
