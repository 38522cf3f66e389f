// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "gates/pairing.h"
#include "gates/scores.h"
#include "gates/texts.h"

namespace vitrine {

namespace {

using gates::ItemPair;
using gates::PairedTask;

constexpr double kBoundConfidence = 0.95;
constexpr double kBothBounds = 0.975;  // of each bound, so that both hold together with 0.95

Flip flip_of(const ItemPair& pair, bool is_counted) {
  Flip flip;
  flip.task = pair.before->task;
  flip.id = pair.before->id;
  flip.is_lost = pair.before->is_right;
  flip.is_critical = pair.before->is_critical;
  flip.is_counted = is_counted;
  flip.parting = gates::parting_of(pair);
  flip.expected = pair.before->expected;
  flip.baseline_answer = pair.before->answer;
  flip.candidate_answer = pair.after->answer;
  return flip;
}

void count_answer(const ItemPair& pair, PairedAnswers& answers) {
  const bool first = pair.before->is_right, second = pair.after->is_right;
  ++(first && second ? answers.both
     : first         ? answers.first_only
     : second        ? answers.second_only
                     : answers.neither);
}

std::optional<PairedScore> score_task(const PairedTask& task, gates::ItemValue value) {
  gates::PairedValues values;
  gates::add_values(task.pairs, value, values);
  return gates::compare_scores(values);
}

std::optional<PairedRatio> time_task(const PairedTask& task, gates::ItemValue value) {
  gates::PairedValues values;
  gates::add_values(task.pairs, value, values);
  return gates::compare_durations(values, kBoundConfidence);
}

void compare_items(const PairedTask& task, ComparedTask& compared,
                   EvaluationComparison& comparison) {
  const bool is_text = task.told->kind == TaskKind::kText;
  for (const ItemPair& pair : task.pairs) {
    ++comparison.num_items;
    if (!pair.before->digest.empty() && pair.before->digest == pair.after->digest) {
      ++compared.equal_digests;
    }
    const Parting parting = gates::parting_of(pair);
    if (parting.input_differs) ++compared.inputs_differ;
    for (const std::string& what : gates::changes_of(pair)) {
      ++compared.changes[what];
      comparison.changes.push_back({pair.before->task, pair.before->id, what, parting});
    }
    if (is_text) continue;
    count_answer(pair, compared.answers);
    if (task.is_counted) count_answer(pair, comparison.answers);
    const bool is_lost = pair.before->is_right && !pair.after->is_right;
    if (pair.before->is_critical) {
      ++comparison.critical_items;
      if (is_lost) ++comparison.critical_lost;
    }
    if (pair.before->is_right != pair.after->is_right) {
      comparison.flips.push_back(flip_of(pair, task.is_counted));
    }
  }
  comparison.equal_digests += compared.equal_digests;
  if (task.is_counted) comparison.counted_items += task.pairs.size();
}

void compare_success(ComparedTask& compared) {
  const PairedAnswers& answers = compared.answers;
  const auto total = static_cast<double>(answers.total());
  if (total == 0) return;
  compared.baseline_success =
      binomial_interval(static_cast<double>(answers.both + answers.first_only), total, kBothBounds);
  compared.candidate_success = binomial_interval(
      static_cast<double>(answers.both + answers.second_only), total, kBothBounds);
  compared.drop = answers.drop_interval(kBoundConfidence);
}

ComparedTask compare_task(const PairedTask& task, EvaluationComparison& comparison) {
  ComparedTask compared;
  compared.name = task.told->name;
  compared.domain = task.told->domain;
  compared.kind = task.told->kind;
  compared.num_items = task.pairs.size();
  compared.is_counted = task.is_counted;
  compared.not_counted = task.not_counted;
  compared.chance = task.told->chance;
  compared.p_chance = task.p_chance;
  compare_items(task, compared, comparison);
  compare_success(compared);
  if (compared.kind != TaskKind::kText) compared.score = score_task(task, gates::score_of);
  compared.reference = score_task(task, gates::reference_of);
  compared.margin = score_task(task, gates::margin_of);
  compared.right_probability = score_task(task, gates::right_probability_of);
  compared.text = gates::compare_texts(gates::paired_tokens(task.pairs));
  compared.first_token_seconds = time_task(task, gates::first_token_seconds_of);
  compared.token_seconds = time_task(task, gates::token_seconds_of);
  return compared;
}

void note_texts(const std::vector<ItemPair>& pairs, std::vector<std::string>& notes) {
  const auto differs = [](const ItemPair& pair) { return !gates::have_same_tokens(pair); };
  const auto first = std::ranges::find_if(pairs, differs);
  if (first == pairs.end()) return;
  notes.push_back(std::to_string(std::ranges::count_if(pairs, differs)) +
                  " texts are other tokens on the two sides, and are left out; the first is " +
                  first->before->task + "/" + first->before->id);
}

/// Whether the probabilities of chosen choices mean what they say, on the items that both have.
Calibration calibration_of(const std::vector<PairedTask>& tasks,
                           const EvaluatedItem* ItemPair::*side) {
  std::vector<double> probabilities;
  std::vector<uint8_t> is_right;
  for (const PairedTask& task : tasks) {
    for (const ItemPair& pair : task.pairs) {
      const auto probability = gates::chosen_probability_of(*(pair.*side));
      if (!probability) continue;
      probabilities.push_back(std::min(*probability, 1.0));
      is_right.push_back((pair.*side)->is_right ? 1 : 0);
    }
  }
  return calibrate(probabilities, is_right);
}

}  // namespace

EvaluationComparison compare_evaluations(const Evaluation& baseline, const Evaluation& candidate) {
  const gates::Pairing pairing = gates::pair_items(baseline, candidate);
  EvaluationComparison comparison;
  comparison.notes = pairing.notes;
  std::vector<ItemPair> all;
  for (const PairedTask& task : pairing.tasks) {
    comparison.tasks.push_back(compare_task(task, comparison));
    all.insert(all.end(), task.pairs.begin(), task.pairs.end());
  }
  comparison.drop = comparison.answers.drop_interval(kBoundConfidence);
  comparison.baseline_calibration = calibration_of(pairing.tasks, &ItemPair::before);
  comparison.candidate_calibration = calibration_of(pairing.tasks, &ItemPair::after);
  note_texts(all, comparison.notes);
  comparison.text = gates::compare_texts(gates::paired_tokens(all));
  gates::PairedValues first_token, token;
  gates::add_values(all, gates::first_token_seconds_of, first_token);
  gates::add_values(all, gates::token_seconds_of, token);
  comparison.first_token_seconds = gates::compare_durations(first_token, kBoundConfidence);
  comparison.token_seconds = gates::compare_durations(token, kBoundConfidence);
  for (const Evaluation* evaluation : {&baseline, &candidate}) {
    if (evaluation->is_complete) continue;
    comparison.notes.push_back(evaluation->path +
                               ": is not complete; what both have is compared, and "
                               "`vitrine eval` goes on where it stopped");
  }
  return comparison;
}

}  // namespace vitrine
