// SPDX-License-Identifier: Apache-2.0
#include "serve/policy.h"

namespace vitrine::serve {

namespace {

/// First come, first served.
class FirstCome final : public Policy {
 public:
  size_t choose(std::span<const WaitingRequest> /*waiting*/, double /*seconds*/) override {
    return 0;
  }
};

VITRINE_REGISTER_POLICY("fcfs", FirstCome);

}  // namespace

}  // namespace vitrine::serve
