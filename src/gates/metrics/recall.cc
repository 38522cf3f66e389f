// SPDX-License-Identifier: Apache-2.0
// Recall by the length of what is recalled from.
#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "gates/metric.h"

namespace vitrine::gates {

namespace {

/// The nominal length, which the item says, else the power of two that holds the prompt, in tokens.
int64_t length_of(const EvaluatedItem& item) {
  const auto part = item.parts.find("length");
  if (part != item.parts.end()) return std::llround(part->second);
  return static_cast<int64_t>(
      std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(1, item.prompt_tokens))));
}

/// The longest length up to which the baseline recalls everything of a task; 0: none.
int64_t complete_length(const PairedTask& task) {
  std::map<int64_t, bool> is_complete;
  for (const ItemPair& pair : task.pairs) {
    const auto [length, is_new] = is_complete.try_emplace(length_of(*pair.before), true);
    length->second = length->second && pair.before->is_right;
  }
  int64_t longest = 0;
  for (const auto& [length, is_whole] : is_complete) {
    if (!is_whole) break;
    longest = length;
  }
  return longest;
}

bool is_recall(const PairedTask& task) {
  return task.told->domain == "recall" && task.told->kind != TaskKind::kText;
}

/// Counts what the candidate does not recall, up to a task's own length.
template <typename Longest>
Measured count_missed(const MetricInput& input, const char* none, const Longest& longest) {
  Measured measured;
  for (const PairedTask* task : input.tasks) {
    if (!is_recall(*task)) continue;
    const double up_to = longest(*task);
    for (const ItemPair& pair : task->pairs) {
      if (static_cast<double>(length_of(*pair.before)) > up_to) continue;
      ++measured.num_items;
      if (!pair.after->is_right) measured.breaking.push_back(item_name(*pair.before));
    }
  }
  if (measured.num_items == 0) return not_measured(none);
  measured.found = static_cast<double>(measured.breaking.size());
  return measured;
}

Measured measure_recall_lost(const MetricInput& input) {
  return count_missed(
      input,
      "no task of recall in scope of which the baseline recalls all at the "
      "shortest length",
      [](const PairedTask& task) { return static_cast<double>(complete_length(task)); });
}

double stated_length(const GateRule& rule) {
  const auto found = rule.options.find("length");
  return found == rule.options.end() ? 0 : found->second;
}

std::string check_length(const GateRule& rule) {
  if (stated_length(rule) >= 1) return {};
  return "'length' is " + std::to_string(stated_length(rule)) +
         "; expected the longest length in tokens, at least 1";
}

Measured measure_recall_missed(const MetricInput& input) {
  return count_missed(input, "no item of recall in scope up to that length",
                      [&](const PairedTask& /*task*/) { return stated_length(input.rule); });
}

VITRINE_REGISTER_GATE_METRIC(
    {.facts = {.name = "recall_lost",
               .unit = "items",
               .about = "items of recall that the candidate misses, up to the longest length at "
                        "which the baseline recalls all of their task",
               .is_count = true},
     .measure = measure_recall_lost});
VITRINE_REGISTER_GATE_METRIC({.facts = {.name = "recall_missed",
                                        .unit = "items",
                                        .about = "items of recall that the candidate misses, up to "
                                                 "'length' tokens",
                                        .is_count = true,
                                        .options = {"length"}},
                              .measure = measure_recall_missed,
                              .check = check_length});

}  // namespace

}  // namespace vitrine::gates
