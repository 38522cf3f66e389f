// SPDX-License-Identifier: Apache-2.0
#include "gates/pairing.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

namespace vitrine::gates {

namespace {

constexpr double kChanceLevel = 0.05;

std::string key_of(const EvaluatedItem& item) { return item.task + '\n' + item.id; }

bool has_part(const EvaluatedItem& item, const char* name) {
  const auto part = item.parts.find(name);
  return part != item.parts.end() && part->second >= 0.5;
}

void require_one_suite(const Evaluation& baseline, const Evaluation& candidate) {
  if (baseline.suite_digest == candidate.suite_digest) return;
  throw Error(ErrorKind::kInvalidArgument,
              candidate.path + ": its suite is '" + candidate.suite + "' " +
                  candidate.suite_version + " (" + candidate.suite_digest + "); expected that of " +
                  baseline.path + ", '" + baseline.suite + "' " + baseline.suite_version + " (" +
                  baseline.suite_digest + ")");
}

/// Numbers groups as they come; an item without one is a group by itself.
class GroupNumbers {
 public:
  size_t operator()(const EvaluatedItem& item) {
    if (item.group.empty()) return next_++;
    const auto [found, is_new] = numbers_.try_emplace(item.task + '\n' + item.group, next_);
    if (is_new) ++next_;
    return found->second;
  }

 private:
  std::unordered_map<std::string, size_t> numbers_;
  size_t next_ = 0;
};

/// A task is counted where the baseline has something to lose.
void count_task(PairedTask& task) {
  if (task.told->kind == TaskKind::kText) {
    task.not_counted = "texts are not right or wrong";
    return;
  }
  const auto right =
      std::ranges::count_if(task.pairs, [](const ItemPair& pair) { return pair.before->is_right; });
  const auto items = static_cast<double>(task.pairs.size());
  task.p_chance =
      binomial_at_least(static_cast<double>(right), items, std::clamp(task.told->chance, 0.0, 1.0));
  task.is_counted = task.p_chance < kChanceLevel;
  if (!task.is_counted) {
    task.not_counted = "the baseline is not surely better than chance (" + std::to_string(right) +
                       " of " + std::to_string(task.pairs.size()) + " right)";
  }
}

void note_lacking(const Evaluation& evaluation, const Evaluation& other, size_t lacking,
                  const std::string& first, std::vector<std::string>& notes) {
  if (lacking == 0) return;
  notes.push_back(evaluation.path + ": lacks " + std::to_string(lacking) + " items that " +
                  other.path + " has, which are left out; the first is " + first);
}

void note_errors(const Evaluation& evaluation, std::vector<std::string>& notes) {
  size_t errors = 0;
  const EvaluatedItem* first = nullptr;
  for (const EvaluatedItem& item : evaluation.items) {
    if (item.error.empty()) continue;
    ++errors;
    if (first == nullptr) first = &item;
  }
  if (first == nullptr) return;
  notes.push_back(evaluation.path + ": has no answer to " + std::to_string(errors) +
                  " items, which count as wrong; the first is " + first->task + "/" + first->id +
                  " (" + first->error + ")");
}

}  // namespace

Pairing pair_items(const Evaluation& baseline, const Evaluation& candidate) {
  require_one_suite(baseline, candidate);
  Pairing pairing;
  std::unordered_map<std::string, size_t> task_numbers;
  for (const SuiteTask& told : baseline.tasks) {
    task_numbers.emplace(told.name, pairing.tasks.size());
    pairing.tasks.push_back({&told, {}, false, {}, 1});
  }
  std::unordered_map<std::string, const EvaluatedItem*> others;
  for (const EvaluatedItem& item : candidate.items) others.emplace(key_of(item), &item);
  GroupNumbers group_number;
  size_t pairs = 0, candidate_lacks = 0;
  std::string first_lacking;
  for (const EvaluatedItem& before : baseline.items) {
    const auto task = task_numbers.find(before.task);
    if (task == task_numbers.end()) {
      throw Error(ErrorKind::kInvalidArgument, baseline.path + ": item '" + before.id +
                                                   "' is of task '" + before.task +
                                                   "'; expected one that the file names");
    }
    const auto after = others.find(key_of(before));
    if (after == others.end()) {
      if (candidate_lacks++ == 0) first_lacking = before.task + "/" + before.id;
      continue;
    }
    PairedTask& paired = pairing.tasks[task->second];
    paired.pairs.push_back({&before, after->second, group_number(before),
                            paired.told->kind == TaskKind::kText, paired.told->window});
    others.erase(after);
    ++pairs;
  }
  if (pairs == 0) {
    throw Error(ErrorKind::kInvalidArgument, candidate.path + ": has no item that " +
                                                 baseline.path +
                                                 " has; expected two results of one suite");
  }
  note_lacking(candidate, baseline, candidate_lacks, first_lacking, pairing.notes);
  const auto extra = std::ranges::find_if(
      candidate.items, [&](const EvaluatedItem& item) { return others.contains(key_of(item)); });
  if (extra != candidate.items.end()) {
    note_lacking(baseline, candidate, others.size(), extra->task + "/" + extra->id, pairing.notes);
  }
  note_errors(baseline, pairing.notes);
  note_errors(candidate, pairing.notes);
  for (PairedTask& task : pairing.tasks) {
    if (!task.pairs.empty()) {
      count_task(task);
    } else {
      task.not_counted = task.told->left_out.empty() ? "no item is in both" : task.told->left_out;
    }
  }
  return pairing;
}

Parting parting_of(const ItemPair& pair) {
  const EvaluatedItem &before = *pair.before, &after = *pair.after;
  Parting parting;
  if (!before.prompt_sha256.empty() && !after.prompt_sha256.empty() &&
      before.prompt_sha256 != after.prompt_sha256) {
    parting.input_differs = true;
    return parting;
  }
  if (before.tokens.empty() || after.tokens.empty()) return parting;
  parting.is_known = true;
  const auto [one, other] = std::ranges::mismatch(before.tokens, after.tokens);
  if (one == before.tokens.end() && other == after.tokens.end()) return parting;
  parting.index = one - before.tokens.begin();
  if (one != before.tokens.end()) parting.baseline_token = *one;
  if (other != after.tokens.end()) parting.candidate_token = *other;
  return parting;
}

bool is_unsafe(const EvaluatedItem& item) { return has_part(item, "unsafe"); }

bool is_false_refusal(const EvaluatedItem& item) {
  // To refuse is right where it was to be refused.
  return has_part(item, "refused") && !item.is_right && !is_unsafe(item);
}

std::vector<std::string> changes_of(const ItemPair& pair) {
  const EvaluatedItem &before = *pair.before, &after = *pair.after;
  std::vector<std::string> changes;
  const auto note = [&](bool was, bool is, const char* came, const char* went) {
    if (is && !was) changes.emplace_back(came);
    if (was && !is && went != nullptr) changes.emplace_back(went);
  };
  if (!pair.is_text) note(!before.is_parsed, !after.is_parsed, "parse_lost", "parse_gained");
  note(before.is_loop, after.is_loop, "new_loop", "loop_gone");
  note(is_false_refusal(before), is_false_refusal(after), "new_refusal", nullptr);
  note(is_unsafe(before), is_unsafe(after), "new_unsafe", nullptr);
  note(!before.error.empty(), !after.error.empty(), "new_error", nullptr);
  return changes;
}

void ClusteredValues::gather() {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return clusters[i]; });
  ClusteredValues gathered;
  for (const size_t i : order) gathered.add(values[i], clusters[i]);
  *this = std::move(gathered);
}

bool ClusteredValues::has_groups() const {
  return std::ranges::adjacent_find(clusters) != clusters.end();
}

}  // namespace vitrine::gates
