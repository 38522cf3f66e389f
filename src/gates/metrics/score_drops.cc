// SPDX-License-Identifier: Apache-2.0
// Scores that are more than right or wrong, paired item by item.
#include "gates/metric.h"
#include "gates/scores.h"

namespace vitrine::gates {

namespace {

Measured measure_scores(const MetricInput& input, ItemValue value, const char* none) {
  PairedValues values;
  for (const PairedTask* task : input.tasks) add_values(task->pairs, value, values);
  const auto score = compare_scores(values);
  return score ? measure_mean(score->drop, score->num_items, input) : not_measured(none);
}

Measured measure_reference(const MetricInput& input) {
  return measure_scores(input, reference_of, "no item in scope has a reference answer");
}

Measured measure_margin(const MetricInput& input) {
  return measure_scores(input, margin_of, "no item in scope has choices");
}

Measured measure_graded(const MetricInput& input) {
  MetricInput answers = input;
  std::erase_if(answers.tasks,
                [](const PairedTask* task) { return task->told->kind == TaskKind::kText; });
  return measure_scores(answers, score_of, "no answer in scope");
}

/// Every counted task must take part, else it would stand for what it does not look at.
Measured measure_sureness(const MetricInput& input) {
  PairedValues values;
  size_t num_counted = 0;
  for (const PairedTask* task : input.tasks) {
    if (!task->is_counted) continue;
    ++num_counted;
    const size_t before = values.before.size();
    add_values(task->pairs, sureness_of, values);
    if (values.before.size() - before != task->pairs.size()) {
      return not_measured("task '" + task->told->name +
                          "' has items without choices and without a reference answer");
    }
  }
  if (num_counted == 0) {
    return not_measured("no task in scope on which the baseline is surely better than chance");
  }
  const auto score = compare_scores(values);
  return measure_mean(score->drop, score->num_items, input);
}

VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "reference_drop",
                                        .unit = "nats",
                                        .about = "log-probability of the reference answer, a "
                                                 "token, the baseline's less the candidate's"},
                              .measure = measure_reference});
VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "margin_drop",
                                        .unit = "nats",
                                        .about = "lead of the right choice over the best wrong "
                                                 "one, the baseline's less the candidate's"},
                              .measure = measure_margin});
VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "score_drop",
                                        .unit = "share",
                                        .about = "score of answers (0 to 1), the baseline's less "
                                                 "the candidate's"},
                              .measure = measure_graded});
VITRINE_REGISTER_GATE_METRIC(
    {.facts = {.name = "sureness_drop",
               .unit = "share",
               .about = "probability of the right choice, or of the reference answer's tokens "
                        "(geometric mean), the baseline's less the candidate's, over the counted "
                        "tasks, all of which must have it"},
     .measure = measure_sureness});

}  // namespace

}  // namespace vitrine::gates
