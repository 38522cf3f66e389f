// SPDX-License-Identifier: Apache-2.0
#include "serve/policy.h"

namespace vitrine::serve {

namespace {

/// First come, first served.
class FirstCome final : public Policy {
 public:
  double rank(const WaitingRequest& /*request*/, double /*seconds*/) const override { return 0; }
};

VITRINE_REGISTER_POLICY("fcfs", FirstCome);

}  // namespace

}  // namespace vitrine::serve
