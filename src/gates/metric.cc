// SPDX-License-Identifier: Apache-2.0
#include "gates/metric.h"

#include <cmath>

#include "core/registry.h"

namespace vitrine {

namespace gates {

namespace {

constexpr double kPower = 0.8;

core::Registry<std::string, Metric>& metrics() {
  static core::Registry<std::string, Metric> all("metric of gates");
  return all;
}

}  // namespace

bool register_metric(const Metric& metric) { return metrics().add(metric.facts.name, metric); }
const Metric* find_metric(const std::string& name) { return metrics().find(name); }

Measured not_measured(const std::string& why) {
  Measured measured;
  measured.why = why;
  return measured;
}

std::string item_name(const EvaluatedItem& item) { return item.task + "/" + item.id; }

std::optional<int64_t> items_by_reach(double standard_error, double distance, size_t num_items,
                                      double confidence) {
  constexpr double kMost = 1e15;
  if (!(standard_error > 0) || !(std::abs(distance) > 0)) return std::nullopt;
  const double reach = normal_quantile(confidence) + normal_quantile(kPower);
  const double scale = reach * standard_error / distance;
  const double items = std::ceil(static_cast<double>(num_items) * scale * scale);
  if (!(items < kMost)) return std::nullopt;
  return static_cast<int64_t>(items);
}

Measured measure_mean(const Estimate& estimate, size_t num_items, const MetricInput& input) {
  Measured measured;
  measured.found = estimate.mean;
  measured.num_items = num_items;
  measured.interval = estimate.interval(input.confidence);
  measured.p_worse = estimate.p_above(input.rule.bound);
  measured.needed = items_by_reach(estimate.standard_error, input.rule.bound - estimate.mean,
                                   num_items, input.confidence);
  return measured;
}

}  // namespace gates

std::vector<GateMetricFacts> gate_metrics() {
  std::vector<GateMetricFacts> facts;
  for (const gates::Metric& metric : gates::metrics().entries()) facts.push_back(metric.facts);
  return facts;
}

}  // namespace vitrine
