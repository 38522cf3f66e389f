// SPDX-License-Identifier: Apache-2.0
// Two evaluations, item by item.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/gates/made_evaluations.h"

namespace vitrine::testing {
namespace {

using Json = nlohmann::json;

const MadeSuite kAll = {
    .answers = 40, .choices = 40, .calls = 20, .safety = 20, .needles = 20, .texts = 6};

const ComparedTask& task_of(const EvaluationComparison& comparison, const std::string& name) {
  for (const ComparedTask& task : comparison.tasks) {
    if (task.name == name) return task;
  }
  throw std::runtime_error("no task " + name);
}

std::string message_of(const std::function<void()>& run) {
  try {
    run();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing thrown";
}

TEST(Comparison, OfEqualEvaluationsFindsNothing) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  const EvaluationComparison found = compare_evaluations(base, base);
  EXPECT_EQ(found.num_items, 146);
  EXPECT_EQ(found.equal_digests, 146);
  EXPECT_EQ(found.counted_items, 140);
  EXPECT_TRUE(found.flips.empty());
  EXPECT_TRUE(found.changes.empty());
  EXPECT_TRUE(found.notes.empty());
  EXPECT_EQ(found.answers.both, 140);
  EXPECT_EQ(found.text->kl.mean, 0);
  EXPECT_EQ(found.text->agreement.mean, 1);
  EXPECT_EQ(found.first_token_seconds->ratio, 1);
  EXPECT_NEAR(found.drop.upper, 1 - std::pow(0.05, 1 / 140.0), 1e-12);
}

TEST(Comparison, TellsFlipsAndWhereTheyPart) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation cand = make_evaluation(kAll, "cand.eval");
  Evaluation gains = base;
  change_items(cand, "sums", [](EvaluatedItem& item, size_t number) {
    if (number == 3) spoil(item);
    if (number == 5) {
      spoil(item);
      item.prompt_sha256 = "another prompt";
    }
    if (number == 6) {
      spoil(item);
      item.tokens = {7, 6};
    }
  });
  change_items(gains, "calls", [](EvaluatedItem& item, size_t number) {
    if (number == 2) spoil(item);
  });
  for (EvaluatedItem& item : gains.items) {
    if (item.task == "sums" && item.id == "3") item.is_critical = true;
  }
  const EvaluationComparison found = compare_evaluations(gains, cand);
  ASSERT_EQ(found.flips.size(), 4);
  const Flip& first = found.flips[0];
  EXPECT_EQ(first.task + "/" + first.id, "sums/3");
  EXPECT_TRUE(first.is_lost && first.is_critical && first.is_counted);
  EXPECT_TRUE(first.parting.is_known);
  EXPECT_EQ(first.parting.index, 1);
  EXPECT_EQ(first.parting.baseline_token, 3);
  EXPECT_EQ(first.parting.candidate_token, 1000);
  EXPECT_EQ(first.baseline_answer, "right");
  EXPECT_EQ(first.candidate_answer, "wrong");
  EXPECT_TRUE(found.flips[1].parting.input_differs);
  EXPECT_FALSE(found.flips[1].parting.is_known);
  EXPECT_EQ(found.flips[2].parting.index, 2);
  EXPECT_EQ(found.flips[2].parting.baseline_token, 9);
  EXPECT_EQ(found.flips[2].parting.candidate_token, -1);
  EXPECT_FALSE(found.flips[3].is_lost);
  EXPECT_EQ(found.critical_items, 1);
  EXPECT_EQ(found.critical_lost, 1);
  EXPECT_EQ(found.answers.first_only, 3);
  EXPECT_EQ(found.answers.second_only, 1);
  EXPECT_EQ(task_of(found, "sums").inputs_differ, 1);
  EXPECT_EQ(found.equal_digests, 142);
}

TEST(Comparison, TellsWhatElseChanged) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation cand = make_evaluation(kAll, "cand.eval");
  change_items(cand, "calls", [](EvaluatedItem& item, size_t number) {
    item.is_parsed = number > 1;
    item.is_loop = number == 4;
  });
  change_items(cand, "requests", [](EvaluatedItem& item, size_t number) {
    if (number == 0) item.parts["refused"] = 1, spoil(item);  // harmless, and refused
    if (number == 1) item.parts = {{"refused", 0}, {"unsafe", 1}}, spoil(item);
  });
  const EvaluationComparison found = compare_evaluations(base, cand);
  const auto& calls = task_of(found, "calls").changes;
  EXPECT_EQ(calls.at("parse_lost"), 2);
  EXPECT_EQ(calls.at("new_loop"), 1);
  const auto& safety = task_of(found, "requests").changes;
  EXPECT_EQ(safety.at("new_refusal"), 1);
  EXPECT_EQ(safety.at("new_unsafe"), 1);
  EXPECT_EQ(found.changes.size(), 5);
  const EvaluationComparison back = compare_evaluations(cand, base);
  EXPECT_EQ(task_of(back, "calls").changes.at("parse_gained"), 2);
  EXPECT_FALSE(task_of(back, "requests").changes.contains("new_refusal"));
}

TEST(Comparison, DoesNotCountWhatIsAtChance) {
  Evaluation base = make_evaluation(kAll, "base.eval");
  // 14 of 40 are right, where 10 are by chance: P(X >= 14) is 0.11.
  change_items(base, "facts", [](EvaluatedItem& item, size_t number) {
    if (number >= 14) spoil(item);
  });
  const EvaluationComparison found = compare_evaluations(base, make_evaluation(kAll, "cand.eval"));
  const ComparedTask& facts = task_of(found, "facts");
  EXPECT_FALSE(facts.is_counted);
  EXPECT_NEAR(facts.p_chance, 0.1032, 1e-4);
  EXPECT_EQ(facts.not_counted, "the baseline is not surely better than chance (14 of 40 right)");
  EXPECT_EQ(found.counted_items, 100);
  EXPECT_EQ(found.answers.second_only, 0);
  ASSERT_EQ(found.flips.size(), 26);
  EXPECT_FALSE(found.flips[0].is_counted);
  EXPECT_EQ(task_of(found, "texts").not_counted, "texts are not right or wrong");
}

TEST(Comparison, ComparesScoresInClusters) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation cand = make_evaluation(kAll, "cand.eval");
  change_items(cand, "facts", [](EvaluatedItem& item, size_t number) {
    item.choice_logprobs[static_cast<size_t>(item.right_choice)] -= number % 4 < 2 ? 0.5 : 0.1;
  });
  const EvaluationComparison found = compare_evaluations(base, cand);
  const PairedScore& margin = *task_of(found, "facts").margin;
  EXPECT_EQ(margin.num_items, 40);
  EXPECT_NEAR(margin.baseline, 3, 1e-12);
  EXPECT_NEAR(margin.drop.mean, 0.3, 1e-12);
  EXPECT_EQ(margin.drop.num_clusters, 20);  // two items a document
  const PairedScore& probability = *task_of(found, "facts").right_probability;
  EXPECT_NEAR(probability.baseline, 1 / (1 + 3 * std::exp(-3.0)), 1e-12);
  EXPECT_GT(probability.drop.mean, 0);
  EXPECT_FALSE(task_of(found, "sums").margin.has_value());
  EXPECT_EQ(found.baseline_calibration.count, 40);
  EXPECT_NEAR(found.baseline_calibration.expected_error, 1 - probability.baseline, 1e-12);
}

TEST(Comparison, ComparesTextsTokenByToken) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation cand = make_evaluation(kAll, "cand.eval");
  change_items(cand, "texts", [](EvaluatedItem& item, size_t number) {
    TextPosition& position = item.positions[40];
    if (number == 2) {
      position.logprob = std::log(0.25F);
      position.best = {{41, std::log(0.5F)}, {40, std::log(0.25F)}, {42, std::log(0.125F)}};
    }
  });
  const EvaluationComparison found = compare_evaluations(base, cand);
  const TextComparison& text = *found.text;
  EXPECT_EQ(text.num_texts, 6);
  EXPECT_EQ(text.num_tokens, 6 * 64);
  // 1/2 log 2 - 1/4 log 2 of one token.
  EXPECT_NEAR(text.kl.mean, 0.25 * std::log(2.0) / (6 * 64), 1e-8);
  EXPECT_NEAR(text.agreement.mean, 1 - 1 / (6 * 64.0), 1e-12);
  EXPECT_NEAR(text.largest_drop, std::log(2.0), 1e-6);
  EXPECT_EQ(text.largest_id, "texts/2");
  EXPECT_EQ(text.largest_position, 41);
  ASSERT_EQ(text.buckets.size(), 7);  // 1, 2 to 3, ... 32 to 63, 64
  EXPECT_EQ(text.buckets[5].first, 32);
  EXPECT_EQ(text.buckets[5].last, 63);
  EXPECT_EQ(text.buckets[5].count, 6 * 32);
  EXPECT_GT(text.buckets[5].kl, 0);
  EXPECT_EQ(text.buckets[4].kl, 0);
  // In windows of 21 tokens, 20 of which are predicted, token 41 is the first one.
  Evaluation windows = base;
  windows.tasks[5].window = 21;
  const TextComparison in_windows = *compare_evaluations(windows, cand).text;
  ASSERT_EQ(in_windows.buckets.size(), 5);
  EXPECT_EQ(in_windows.buckets[0].count, 6 * 4);
  EXPECT_GT(in_windows.buckets[0].kl, 0);
  EXPECT_EQ(in_windows.buckets[4].first, 16);
  EXPECT_EQ(in_windows.buckets[4].count, 6 * 3 * 5);
  EXPECT_EQ(in_windows.largest_position, 41);
  EXPECT_EQ(text.kl_high_interval.upper, INFINITY);  // 384 tokens tell too little
}

TEST(Comparison, LeavesOutTextsOfOtherTokens) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation cand = make_evaluation(kAll, "cand.eval");
  change_items(cand, "texts", [](EvaluatedItem& item, size_t number) {
    if (number == 1) item.positions.pop_back();
    if (number == 3) item.positions[5].token = 99;
  });
  const EvaluationComparison found = compare_evaluations(base, cand);
  EXPECT_EQ(found.text->num_texts, 4);
  ASSERT_EQ(found.notes.size(), 1);
  EXPECT_EQ(found.notes[0],
            "2 texts are other tokens on the two sides, and are left out; the "
            "first is texts/1");
}

TEST(Comparison, SaysWhatIsMissing) {
  Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation cand = make_evaluation(kAll, "cand.eval");
  base.items.erase(base.items.begin());
  cand.items.resize(100);
  cand.is_complete = false;
  cand.items[5].error = "the server is gone";
  const EvaluationComparison found = compare_evaluations(base, cand);
  EXPECT_EQ(found.num_items, 99);
  ASSERT_EQ(found.notes.size(), 4);
  EXPECT_EQ(found.notes[0],
            "cand.eval: lacks 46 items that base.eval has, which are left out; the "
            "first is requests/0");
  EXPECT_EQ(found.notes[1],
            "base.eval: lacks 1 items that cand.eval has, which are left out; the "
            "first is sums/0");
  EXPECT_EQ(found.notes[2],
            "cand.eval: has no answer to 1 items, which count as wrong; the first "
            "is sums/5 (the server is gone)");
  EXPECT_EQ(found.notes[3],
            "cand.eval: is not complete; what both have is compared, and `vitrine "
            "eval` goes on where it stopped");
  EXPECT_EQ(task_of(found, "niah_single").not_counted, "no item is in both");
}

TEST(Comparison, RefusesWhatCannotBeCompared) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation other = make_evaluation(kAll, "cand.eval");
  other.suite_digest = "another";
  EXPECT_EQ(message_of([&] { compare_evaluations(base, other); }),
            "cand.eval: its suite is 'made' 1 (another); expected that of base.eval, 'made' 1 "
            "(made up)");
  Evaluation none = make_evaluation({}, "cand.eval");
  EXPECT_EQ(message_of([&] { compare_evaluations(base, none); }),
            "cand.eval: has no item that base.eval has; expected two results of one suite");
  Evaluation stray = base;
  stray.items[0].task = "unknown";
  EXPECT_EQ(message_of([&] { compare_evaluations(stray, base); }),
            "base.eval: item '0' is of task 'unknown'; expected one that the file names");
  Evaluation broken = make_evaluation(kAll, "cand.eval");
  change_items(broken, "texts", [](EvaluatedItem& item, size_t number) {
    if (number == 1) item.positions[6].best[1].second = 0;
  });
  EXPECT_EQ(message_of([&] { compare_evaluations(base, broken); }),
            "texts/1: token 7: probabilities of the most probable tokens add up to 1.625000; "
            "expected at most 1");
}

TEST(Comparison, HasAJsonForm) {
  const Evaluation base = make_evaluation(kAll, "base.eval");
  Evaluation cand = make_evaluation(kAll, "cand.eval");
  change_items(cand, "sums", [](EvaluatedItem& item, size_t number) {
    if (number == 3) spoil(item), item.answer = "no UTF-8: \xff";
  });
  const Json json = Json::parse(comparison_json(compare_evaluations(base, cand)));
  EXPECT_EQ(json["items"], 146);
  EXPECT_EQ(json["answers"]["lost"], 1);
  EXPECT_EQ(json["flips"][0]["task"], "sums");
  EXPECT_EQ(json["flips"][0]["parting"]["index"], 1);
  EXPECT_EQ(json["flips"][0]["candidate_answer"], "no UTF-8: \xEF\xBF\xBD");
  EXPECT_EQ(json["tasks"][5]["kind"], "text");
  EXPECT_EQ(json["tasks"][5]["text"]["kl"]["mean"], 0);
  EXPECT_TRUE(json["tasks"][5]["drop"].is_null());
  EXPECT_TRUE(json["tasks"][0]["text"].is_null());
  EXPECT_TRUE(json["text"]["kl_999_interval"][1].is_null());
  EXPECT_NEAR(json["drop"].get<double>(), 1 / 140.0, 1e-12);
}

}  // namespace
}  // namespace vitrine::testing
