// SPDX-License-Identifier: Apache-2.0
#include "gates/log_records.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace vitrine::gates {

namespace {

/// What rounding makes of equal values in a log of level standard: norms are bfloat16, the others
/// binary16 (docs/vtr-format.md), and either may be rounded away from the other.
constexpr double kNormRounding = 1.0 / 128, kHalfRounding = 1.0 / 1024;

double relative(float a, float b) {
  if (a == b) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return std::numeric_limits<double>::infinity();
  return std::fabs(double{a} - double{b}) / std::max({std::fabs(a), std::fabs(b), 1e-6f});
}

double weight_of(const std::vector<RouteRecord>& routes, int32_t expert) {
  const auto found = std::ranges::find(routes, expert, &RouteRecord::expert);
  return found == routes.end() ? 0 : double{found->weight};
}

/// How much of the gate weights went to other experts, and the expert with the largest change.
Difference routing_difference(const LayerRecord& a, const LayerRecord& b) {
  double sum = 0, total = 0, largest = 0;
  Difference found;
  const auto add = [&](int32_t expert, double change) {
    sum += change;
    if (change > largest) largest = change, found.expert = expert;
  };
  for (const RouteRecord& route : a.routes) {
    total += std::fabs(double{route.weight});
    add(route.expert, std::fabs(route.weight - weight_of(b.routes, route.expert)));
  }
  for (const RouteRecord& route : b.routes) {
    if (std::ranges::find(a.routes, route.expert, &RouteRecord::expert) == a.routes.end()) {
      add(route.expert, std::fabs(double{route.weight}));
    }
  }
  found.value = total > 0 ? sum / (2 * total) : 0;
  return found;
}

}  // namespace

double rounding_of(PartingProbe probe) {
  switch (probe) {
    case PartingProbe::kResidual:
    case PartingProbe::kExpertOutput: return kNormRounding;
    case PartingProbe::kRouting: return kHalfRounding;
    case PartingProbe::kLogprob: break;
  }
  return 16 * kHalfRounding;  // nats, of log-probabilities around -16 at most
}

ItemRun read_run(const std::string& path, const std::optional<SealKey>& reader) {
  VtrReader log(path, reader);
  std::map<int64_t, TokenRecord> by_position;
  VtrPage page;
  while (log.next(page)) {
    for (TokenRecord& record : page.records)
      by_position.try_emplace(record.position, std::move(record));
  }
  ItemRun run;
  bool has_generated = false;
  for (auto& [position, record] : by_position) {
    if (!has_generated) run.prompt_tokens = position + 1;
    has_generated = has_generated || (record.has_prediction && record.prediction.generated);
    run.records.push_back(std::move(record));
  }
  return run;
}

void compare_records(const TokenRecord& a, const TokenRecord& b,
                     const OnDifference& on_difference) {
  for (size_t i = 0; i < std::min(a.layers.size(), b.layers.size()); ++i) {
    const LayerRecord &left = a.layers[i], &right = b.layers[i];
    const Difference residual{relative(left.residual_norm, right.residual_norm), -1};
    if (!on_difference(left.layer, PartingProbe::kResidual, residual)) return;
    if (left.routes.empty()) continue;
    if (!on_difference(left.layer, PartingProbe::kRouting, routing_difference(left, right))) return;
    for (size_t slot = 0; slot < std::min(left.expert_norms.size(), left.routes.size()); ++slot) {
      const int32_t expert = left.routes[slot].expert;
      const auto other = std::ranges::find(right.routes, expert, &RouteRecord::expert);
      const auto at = static_cast<size_t>(other - right.routes.begin());
      if (at >= right.expert_norms.size()) continue;
      const Difference output{relative(left.expert_norms[slot], right.expert_norms[at]), expert};
      if (!on_difference(left.layer, PartingProbe::kExpertOutput, output)) return;
    }
  }
  if (!a.has_prediction || !b.has_prediction || a.prediction.token != b.prediction.token) return;
  on_difference(-1, PartingProbe::kLogprob,
                {std::fabs(double{a.prediction.logprob} - double{b.prediction.logprob}), -1});
}

}  // namespace vitrine::gates
