// SPDX-License-Identifier: Apache-2.0
// Private to the library: what a gate's rules can measure. A metric is one file in
// src/gates/metrics and one registration.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/unique_name.h"
#include "gates/pairing.h"

namespace vitrine::gates {

inline constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// What a metric looks at: the tasks of a rule's scope, and the rule.
struct MetricInput {
  std::vector<const PairedTask*> tasks;
  const GateRule& rule;
  double confidence = 0.95;  // of each bound
};

/// What a metric found.
struct Measured {
  std::string why;  // nothing was measured; empty: something was
  double found = 0;
  Interval interval{kNone, kNone};
  double p_worse = kNone;             // of the test that says so; NaN: there is none
  size_t num_items = 0;               // that were measured
  std::optional<int64_t> needed;      // so many items would decide
  std::vector<std::string> breaking;  // TASK/ID of each item that breaks a count
};

struct Metric {
  GateMetricFacts facts;
  Measured (*measure)(const MetricInput& input);
  /// Says what is wrong with a rule ("'quantile' is 2; expected …"); empty: nothing. May be null.
  std::string (*check)(const GateRule& rule) = nullptr;
};

bool register_metric(const Metric& metric);
/// Null where there is none.
const Metric* find_metric(const std::string& name);

#define VITRINE_REGISTER_GATE_METRIC(...)                                       \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(gate_metric_is_registered_) = \
      ::vitrine::gates::register_metric(__VA_ARGS__)

// ---- What several metrics share ----------------------------------------------------------------

Measured not_measured(const std::string& why);
std::string item_name(const EvaluatedItem& item);

/// Counts the pairs of all tasks in scope that `breaks` says yes to, among those that `applies` to.
/// Nothing was measured where it applies to none; `none` says so.
template <typename Applies, typename Breaks>
Measured count_pairs(const MetricInput& input, const char* none, const Applies& applies,
                     const Breaks& breaks) {
  Measured measured;
  for (const PairedTask* task : input.tasks) {
    for (const ItemPair& pair : task->pairs) {
      if (!applies(pair)) continue;
      ++measured.num_items;
      if (breaks(pair)) measured.breaking.push_back(item_name(*pair.before));
    }
  }
  if (measured.num_items == 0) return not_measured(none);
  measured.found = static_cast<double>(measured.breaking.size());
  return measured;
}

/// What a mean says of a rule: how many items would decide follows from its standard error.
Measured measure_mean(const Estimate& estimate, size_t num_items, const MetricInput& input);
/// So many items would bring an interval of `reach` on each side below half of `distance`, from
/// `num_items` items, at 80 % power.
std::optional<int64_t> items_by_reach(double standard_error, double distance, size_t num_items,
                                      double confidence);

}  // namespace vitrine::gates
