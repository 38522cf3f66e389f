// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "serve/policy.h"

namespace vitrine::serve {

namespace {

/// The tenant that had least goes next, by virtual token counters (Sheng et al., arXiv 2401.00588):
/// a generated token counts as two that were computed of a prompt. A tenant that comes back begins
/// where the one that has least of those who wait stands, or the one that was served last: nobody
/// saves up.
class FairShare final : public Policy {
 public:
  // Those who did not wait the last time get the least count of those who did.
  void look(std::span<const WaitingRequest> waiting) override {
    int64_t least = INT64_MAX;
    for (const WaitingRequest& one : waiting) {
      const Counter& own = counter(one.tenant);
      if (own.was_waiting) least = std::min(least, own.served);
    }
    if (least == INT64_MAX) least = last_served_;
    for (auto& [name, own] : counters_) {
      const bool waits = std::ranges::any_of(
          waiting, [&](const WaitingRequest& one) { return one.tenant == name; });
      if (waits && !own.was_waiting) own.served = std::max(own.served, least);
      own.was_waiting = waits;
    }
  }

  double rank(const WaitingRequest& request, double /*seconds*/) const override {
    const auto found = counters_.find(request.tenant);
    return found == counters_.end() ? 0 : static_cast<double>(found->second.served);
  }

  void charge(std::string_view tenant, int64_t computed, int64_t generated) override {
    Counter& own = counter(tenant);
    own.served += computed + 2 * generated;
    last_served_ = own.served;
    if (counters_.size() > kMostTenants) {
      std::erase_if(counters_, [](const auto& entry) { return !entry.second.was_waiting; });
    }
  }

 private:
  struct Counter {
    int64_t served = 0;
    bool was_waiting = false;
  };

  Counter& counter(std::string_view tenant) {
    const auto found = counters_.find(tenant);
    return found != counters_.end() ? found->second : counters_[std::string(tenant)];
  }

  static constexpr size_t kMostTenants = 4096;  // that are remembered while they ask for nothing
  std::map<std::string, Counter, std::less<>> counters_;
  int64_t last_served_ = 0;  // the count of the tenant that was served last
};

VITRINE_REGISTER_POLICY("fair", FairShare);

}  // namespace

}  // namespace vitrine::serve
