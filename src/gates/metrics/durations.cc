// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "gates/metric.h"
#include "gates/scores.h"

namespace vitrine::gates {

namespace {

Measured measure_durations(const MetricInput& input, ItemValue value, const char* none) {
  PairedValues values;
  for (const PairedTask* task : input.tasks) add_values(task->pairs, value, values);
  const auto ratio = compare_durations(values, input.confidence);
  if (!ratio) return not_measured(none);
  std::vector<double> ratios;
  std::vector<size_t> alone;
  for (size_t i = 0; i < values.before.size(); ++i) {
    ratios.push_back(values.after[i] / values.before[i]);
    alone.push_back(i);
  }
  Measured measured;
  measured.num_items = ratio->num_pairs;
  measured.found = ratio->ratio;
  measured.interval = ratio->interval;
  measured.p_worse = quantile_p_above(ratios, alone, 0.5, input.rule.bound);
  // Half an interval is about as wide as so many standard errors.
  const double reach = (ratio->interval.upper - ratio->interval.lower) / 2;
  measured.needed =
      items_by_reach(reach / normal_quantile(input.confidence), input.rule.bound - ratio->ratio,
                     ratio->num_pairs, input.confidence);
  return measured;
}

Measured measure_first_token(const MetricInput& input) {
  return measure_durations(input, first_token_seconds_of, "no answer in scope was timed");
}

Measured measure_token(const MetricInput& input) {
  return measure_durations(input, token_seconds_of,
                           "no answer in scope of at least two tokens was timed");
}

std::string check_ratio(const GateRule& rule) {
  if (rule.bound > 0) return {};
  return "'bound' is " + std::to_string(rule.bound) + "; expected a ratio above 0 (1.1: 10 % more)";
}

VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "first_token_ratio",
                                        .unit = "ratio",
                                        .about = "time to the first token, the candidate's over "
                                                 "the baseline's: the median over answers"},
                              .measure = measure_first_token,
                              .check = check_ratio});
VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "token_ratio",
                                        .unit = "ratio",
                                        .about = "time between tokens of an answer, the "
                                                 "candidate's over the baseline's: the median"},
                              .measure = measure_token,
                              .check = check_ratio});

}  // namespace

}  // namespace vitrine::gates
