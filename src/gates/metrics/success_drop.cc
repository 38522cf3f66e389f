// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>

#include "gates/metric.h"

namespace vitrine::gates {

namespace {

/// Right and wrong, pooled over the counted tasks.
struct PooledAnswers {
  PairedAnswers answers;
  ClusteredValues drops;               // 1 lost, -1 gained, 0 neither
  std::vector<std::string> lost;       // TASK/ID
  std::map<size_t, int64_t> balances;  // lost less gained, of each cluster
};

PooledAnswers pool_answers(const MetricInput& input) {
  PooledAnswers pooled;
  for (const PairedTask* task : input.tasks) {
    if (!task->is_counted) continue;
    for (const ItemPair& pair : task->pairs) {
      const bool first = pair.before->is_right, second = pair.after->is_right;
      ++(first && second ? pooled.answers.both
         : first         ? pooled.answers.first_only
         : second        ? pooled.answers.second_only
                         : pooled.answers.neither);
      const int drop = (first ? 1 : 0) - (second ? 1 : 0);
      pooled.drops.add(drop, pair.cluster);
      pooled.balances[pair.cluster] += drop;
      if (drop > 0) pooled.lost.push_back(item_name(*pair.before));
    }
  }
  pooled.drops.gather();
  return pooled;
}

std::optional<int64_t> items_needed(const PairedAnswers& answers, const GateRule& rule,
                                    double confidence) {
  if (!(rule.bound > 0 && rule.bound < 1)) return std::nullopt;
  const auto total = static_cast<double>(answers.total());
  const double flips = static_cast<double>(answers.first_only + answers.second_only) / total;
  const int64_t planned = items_to_decide(flips, rule.bound, confidence);
  if (planned > answers.total()) return planned;
  // So many were there and did not decide: what was found lies near the bound. The nearer of the
  // two decisions is to show that it is below, or that it is there.
  const double drop = std::max(answers.drop(), 0.0);
  const double distance = drop < rule.bound ? rule.bound - drop : drop;
  return items_to_decide(flips, std::min(distance, 0.999), confidence);
}

Measured measure_success(const MetricInput& input) {
  PooledAnswers pooled = pool_answers(input);
  const PairedAnswers& answers = pooled.answers;
  if (answers.total() == 0) {
    return not_measured("no task in scope on which the baseline is surely better than chance");
  }
  Measured measured;
  measured.found = answers.drop();
  measured.num_items = static_cast<size_t>(answers.total());
  measured.breaking = std::move(pooled.lost);
  measured.interval = answers.drop_interval(input.confidence);
  measured.p_worse = answers.p_worse();
  measured.needed = items_needed(answers, input.rule, input.confidence);
  if (!pooled.drops.has_groups()) return measured;
  // Items of a group hang together: the interval is not narrower than that of groups, and each
  // group is one toss.
  const Interval groups =
      clustered_mean(pooled.drops.values, pooled.drops.clusters).interval(input.confidence);
  measured.interval.lower = std::min(measured.interval.lower, groups.lower);
  measured.interval.upper = std::max(measured.interval.upper, groups.upper);
  PairedAnswers tosses;
  for (const auto& [cluster, balance] : pooled.balances) {
    if (balance > 0) ++tosses.first_only;
    if (balance < 0) ++tosses.second_only;
  }
  measured.p_worse = tosses.p_worse();
  return measured;
}

std::string check_success(const GateRule& rule) {
  if (rule.bound >= 0 && rule.bound < 1) return {};
  return "'bound' is " + std::to_string(rule.bound) +
         "; expected a share from 0 to below 1 (0.01: a point)";
}

VITRINE_REGISTER_GATE_METRIC(
    {.facts = {.name = "success_drop",
               .unit = "share",
               .about =
                   "share of items answered rightly, the baseline's less the candidate's, over "
                   "the tasks on which the baseline is surely better than chance"},
     .measure = measure_success,
     .check = check_success});

}  // namespace

}  // namespace vitrine::gates
