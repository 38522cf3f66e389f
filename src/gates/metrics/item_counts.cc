// SPDX-License-Identifier: Apache-2.0
// Items that are no longer as they were.
#include <algorithm>

#include "gates/metric.h"

namespace vitrine::gates {

namespace {

bool is_any(const ItemPair& /*pair*/) { return true; }

bool is_answer(const ItemPair& pair) { return !pair.is_text; }

bool is_of_safety(const ItemPair& pair) {
  const auto& parts = pair.before->parts;
  return parts.contains("refused") || parts.contains("unsafe");
}

bool has_change(const ItemPair& pair, const char* what) {
  return std::ranges::count(changes_of(pair), what) > 0;
}

bool has_flipped(const ItemPair& pair) { return pair.before->is_right != pair.after->is_right; }

bool is_lost(const ItemPair& pair) { return pair.before->is_right && !pair.after->is_right; }

Measured count_parse_lost(const MetricInput& input) {
  return count_pairs(input, "no answer in scope", is_answer,
                     [](const ItemPair& pair) { return has_change(pair, "parse_lost"); });
}

Measured count_parse_failures(const MetricInput& input) {
  return count_pairs(input, "no answer in scope", is_answer,
                     [](const ItemPair& pair) { return !pair.after->is_parsed; });
}

Measured count_new_loops(const MetricInput& input) {
  return count_pairs(input, "no answer in scope", is_answer,
                     [](const ItemPair& pair) { return has_change(pair, "new_loop"); });
}

Measured count_loops(const MetricInput& input) {
  return count_pairs(input, "no answer in scope", is_answer,
                     [](const ItemPair& pair) { return pair.after->is_loop; });
}

Measured count_new_refusals(const MetricInput& input) {
  return count_pairs(input, "no item of safety in scope", is_of_safety,
                     [](const ItemPair& pair) { return has_change(pair, "new_refusal"); });
}

Measured count_new_unsafe(const MetricInput& input) {
  return count_pairs(input, "no item of safety in scope", is_of_safety,
                     [](const ItemPair& pair) { return has_change(pair, "new_unsafe"); });
}

Measured count_unsafe(const MetricInput& input) {
  return count_pairs(input, "no item of safety in scope", is_of_safety,
                     [](const ItemPair& pair) { return is_unsafe(*pair.after); });
}

Measured count_new_errors(const MetricInput& input) {
  return count_pairs(input, "no item in scope", is_any,
                     [](const ItemPair& pair) { return has_change(pair, "new_error"); });
}

Measured count_critical_lost(const MetricInput& input) {
  return count_pairs(
      input, "no critical item in scope",
      [](const ItemPair& pair) { return is_answer(pair) && pair.before->is_critical; }, is_lost);
}

Measured count_flips(const MetricInput& input) {
  return count_pairs(input, "no answer in scope", is_answer, has_flipped);
}

Measured count_lost(const MetricInput& input) {
  return count_pairs(input, "no answer in scope", is_answer, is_lost);
}

Measured count_digests(const MetricInput& input) {
  return count_pairs(input, "no item in scope", is_any, [](const ItemPair& pair) {
    return pair.before->digest.empty() || pair.before->digest != pair.after->digest;
  });
}

Measured count_inputs(const MetricInput& input) {
  return count_pairs(
      input, "no item in scope of which both sides tell the prompt's ids",
      [](const ItemPair& pair) {
        return !pair.before->prompt_sha256.empty() && !pair.after->prompt_sha256.empty();
      },
      [](const ItemPair& pair) { return parting_of(pair).input_differs; });
}

Metric item_count(const char* name, const char* about, Measured (*measure)(const MetricInput&)) {
  return {.facts = {.name = name, .unit = "items", .about = about, .is_count = true},
          .measure = measure};
}

VITRINE_REGISTER_GATE_METRIC(item_count(
    "parse_lost", "answers of the baseline that could be read, and the candidate's cannot",
    count_parse_lost));
VITRINE_REGISTER_GATE_METRIC(item_count("parse_failures",
                                        "answers of the candidate that cannot be read",
                                        count_parse_failures));
VITRINE_REGISTER_GATE_METRIC(
    item_count("new_loops", "answers that end in a repetition where the baseline's does not",
               count_new_loops));
VITRINE_REGISTER_GATE_METRIC(item_count("loops",
                                        "answers of the candidate that end in a repetition",
                                        count_loops));
VITRINE_REGISTER_GATE_METRIC(item_count(
    "new_refusals", "harmless prompts that the candidate refuses and the baseline answers",
    count_new_refusals));
VITRINE_REGISTER_GATE_METRIC(item_count(
    "new_unsafe", "harmful prompts that the candidate complies with, and the baseline does not",
    count_new_unsafe));
VITRINE_REGISTER_GATE_METRIC(item_count("unsafe",
                                        "harmful prompts that the candidate complies with",
                                        count_unsafe));
VITRINE_REGISTER_GATE_METRIC(
    item_count("new_errors", "items that have an answer of the baseline and none of the candidate",
               count_new_errors));
VITRINE_REGISTER_GATE_METRIC(item_count("critical_lost",
                                        "critical items that the baseline alone answers rightly",
                                        count_critical_lost));
VITRINE_REGISTER_GATE_METRIC(item_count("flips", "items that one side alone answers rightly",
                                        count_flips));
VITRINE_REGISTER_GATE_METRIC(item_count("lost", "items that the baseline alone answers rightly",
                                        count_lost));
VITRINE_REGISTER_GATE_METRIC(
    item_count("digest_differences", "items whose prompt, ids or log-probabilities differ in a bit",
               count_digests));

VITRINE_REGISTER_GATE_METRIC(item_count("input_differences",
                                        "items whose prompt is not the same ids on both sides",
                                        count_inputs));

}  // namespace

}  // namespace vitrine::gates
