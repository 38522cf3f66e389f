// SPDX-License-Identifier: Apache-2.0
#include "replay_drift.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "audit.h"

namespace cli {

namespace {

using vitrine::LayerRecord;
using vitrine::TokenRecord;

/// The experts that a layer's router would choose, from its probabilities.
std::set<int32_t> own_choice(const LayerRecord& layer) {
  std::vector<int32_t> order(layer.router_probs.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    return layer.router_probs[static_cast<size_t>(a)] > layer.router_probs[static_cast<size_t>(b)];
  });
  order.resize(std::min(order.size(), layer.routes.size()));
  return {order.begin(), order.end()};
}

}  // namespace

Drift measure_drift(const Run& run, const std::vector<std::optional<TokenRecord>>& again) {
  Drift drift;
  for (size_t i = 0; i < run.records.size(); ++i) {
    if (!again[i]) continue;
    const TokenRecord& logged = run.records[i];
    for (size_t l = 0; l < std::min(logged.layers.size(), again[i]->layers.size()); ++l) {
      const std::set<int32_t> own = own_choice(again[i]->layers[l]);
      for (const vitrine::RouteRecord& route : logged.layers[l].routes) {
        ++drift.routes;
        drift.other_routes += own.contains(route.expert) ? 0 : 1;
      }
    }
    if (!logged.has_prediction || !again[i]->has_prediction) continue;
    const auto prediction = as_logged(run, *again[i]).prediction;
    ++drift.predictions;
    drift.logprob_sum += std::abs(static_cast<double>(prediction.logprob) -
                                  static_cast<double>(logged.prediction.logprob));
    const bool is_same =
        !prediction.alternatives.empty() && !logged.prediction.alternatives.empty() &&
        prediction.alternatives[0].token == logged.prediction.alternatives[0].token;
    drift.same_best += is_same ? 1 : 0;
  }
  return drift;
}

nlohmann::ordered_json drift_json(const Drift& drift) {
  return {{"predictions", drift.predictions},
          {"same_best_token", drift.same_best},
          {"mean_abs_logprob_difference", drift.mean_logprob()},
          {"routes", drift.routes},
          {"routes_different", drift.other_routes}};
}

std::string drift_line(const char* name, const Drift& drift) {
  return fmt::format(
      "{:<7} best token the same for {} of {} predictions; log-probabilities {:.4f} nats apart on "
      "average; its routers choose other experts for {} of {} routes\n",
      name, drift.same_best, drift.predictions, drift.mean_logprob(), drift.other_routes,
      drift.routes);
}

}  // namespace cli
