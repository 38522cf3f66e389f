// SPDX-License-Identifier: Apache-2.0
// Gates on evaluations that are made up: each rule passes, is refused and is undecided.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/gates/made_evaluations.h"

namespace vitrine::testing {
namespace {

using Json = nlohmann::json;

const MadeSuite kSmall = {
    .answers = 40, .choices = 40, .calls = 20, .safety = 20, .needles = 20, .texts = 6};
const MadeSuite kLarge = {.answers = 1300};

/// The only rule's verdict.
RuleVerdict judge(const std::string& metric, const std::string& more, const Evaluation& base,
                  const Evaluation& cand) {
  const Verdict verdict = run_gate(gate_of(rule_of(metric, more)), base, cand);
  EXPECT_EQ(verdict.rules.size(), 1);
  return verdict.rules.at(0);
}

/// An evaluation with the first `count` items of a task spoilt.
Evaluation with_spoilt(const MadeSuite& made, const std::string& task, size_t count,
                       size_t first = 0) {
  Evaluation evaluation = make_evaluation(made, "cand.eval");
  change_items(evaluation, task, [&](EvaluatedItem& item, size_t number) {
    if (number >= first && number < first + count) spoil(item);
  });
  return evaluation;
}

TEST(SuccessRule, PassesByItsUpperBound) {
  const Evaluation base = make_evaluation(kLarge, "base.eval");
  const RuleVerdict none = judge("success_drop", "bound = 0.01", base, base);
  EXPECT_EQ(none.outcome, GateOutcome::kPasses);
  EXPECT_NEAR(none.interval.upper, 1 - std::pow(0.05, 1 / 1300.0), 1e-12);
  const RuleVerdict few =
      judge("success_drop", "bound = 0.01", base, with_spoilt(kLarge, "sums", 6));
  EXPECT_EQ(few.outcome, GateOutcome::kPasses);
  // Surely worse, and surely by less than the bound.
  EXPECT_LT(few.p_holm, 0.05);
  EXPECT_LT(few.interval.upper, 0.01);
}

TEST(SuccessRule, IsUndecidedWithTooFewItems) {
  const MadeSuite few = {.answers = 200};
  const Evaluation base = make_evaluation(few, "base.eval");
  const RuleVerdict found = judge("success_drop", "bound = 0.01", base, base);
  EXPECT_EQ(found.outcome, GateOutcome::kInconclusive);
  EXPECT_EQ(found.items_needed, 299);
  EXPECT_EQ(found.text(),
            "inconclusive: success_drop: 0.00 % (bound 1.00 %; 95 % bounds -1.49 % to 1.49 %; p 1) "
            "in 200 items; 299 items would decide; next: roll back");
  const Verdict verdict = run_gate(gate_of(rule_of("success_drop", "bound = 0.01")), base, base);
  EXPECT_EQ(verdict.outcome, GateOutcome::kInconclusive);
  EXPECT_EQ(verdict.exit_code(), 4);
}

TEST(SuccessRule, IsRefusedByTheTest) {
  const Evaluation base = make_evaluation(kLarge, "base.eval");
  const Evaluation cand = with_spoilt(kLarge, "sums", 30);
  const RuleVerdict found = judge("success_drop", "bound = 0.01", base, cand);
  EXPECT_EQ(found.outcome, GateOutcome::kRefused);
  EXPECT_EQ(found.num_breaking, 30);
  EXPECT_EQ(found.items.size(), 20);
  EXPECT_EQ(found.items[0], "sums/0");
  EXPECT_NE(found.text().find("next: roll back"), std::string::npos);
  const RuleVerdict test = judge("success_drop", "kind = \"not_worse\"", base, cand);
  EXPECT_EQ(test.outcome, GateOutcome::kRefused);
  EXPECT_EQ(judge("success_drop", "kind = \"not_worse\"", base, base).outcome,
            GateOutcome::kPasses);
  EXPECT_EQ(judge("success_drop", "kind = \"exact\"\nbound = 0.02", base, cand).outcome,
            GateOutcome::kRefused);
  EXPECT_EQ(judge("success_drop", "kind = \"exact\"\nbound = 0.03", base, cand).outcome,
            GateOutcome::kPasses);
}

TEST(SuccessRule, LooksAtItsScopeAlone) {
  const Evaluation base = make_evaluation(kSmall, "base.eval");
  const Evaluation cand = with_spoilt(kSmall, "calls", 10);
  for (const char* scope : {"schema", "calls", "cal*", "all"}) {
    EXPECT_EQ(
        judge("success_drop", "bound = 0.01\nscope = \"" + std::string(scope) + "\"", base, cand)
            .outcome,
        GateOutcome::kRefused)
        << scope;
  }
  const RuleVerdict logic = judge("success_drop", "bound = 0.5\nscope = \"logic\"", base, cand);
  EXPECT_EQ(logic.outcome, GateOutcome::kPasses);
  EXPECT_EQ(logic.num_items, 80);
  const RuleVerdict others = judge("success_drop", "bound = 0.5\nexcept = \"schema\"", base, cand);
  EXPECT_EQ(others.found, 0);
  EXPECT_EQ(others.num_items, 120);
  const RuleVerdict none = judge("success_drop", "bound = 0.5\nscope = \"x*\"", base, cand);
  EXPECT_EQ(none.outcome, GateOutcome::kNotMeasured);
  EXPECT_EQ(none.text(), "not measured: success_drop: the suite has no task in scope 'x*'");
  try {
    judge("success_drop", "bound = 0.5\nscope = \"x\"", base, cand);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "g.toml: [[rule]] 'success_drop': 'scope' is 'x'; expected all, a domain or a "
                 "task of the suite (sums, facts, calls, requests, niah_single, texts)");
  }
}

TEST(SuccessRule, TakesGroupsForOneItem) {
  const MadeSuite made = {.answers = 400};
  Evaluation base = make_evaluation(made, "base.eval");
  Evaluation cand = with_spoilt(made, "sums", 10);
  const RuleVerdict alone = judge("success_drop", "bound = 0.01", base, cand);
  EXPECT_EQ(alone.outcome, GateOutcome::kRefused);
  const auto group = [](EvaluatedItem& item, size_t number) {
    item.group = std::to_string(number / 10);
  };
  change_items(base, "sums", group);
  change_items(cand, "sums", group);
  const RuleVerdict grouped = judge("success_drop", "bound = 0.01", base, cand);
  EXPECT_EQ(grouped.outcome, GateOutcome::kInconclusive);  // one group of 40 was lost
  EXPECT_EQ(grouped.p_value, 0.5);
  EXPECT_GT(grouped.interval.upper, alone.interval.upper);
}

struct CountCase {
  const char* metric;
  const char* task;
  void (*breaks)(EvaluatedItem& item);
};

TEST(CountRules, PassWithoutAndAreRefusedWithOne) {
  const CountCase cases[] = {
      {"parse_lost", "calls", [](EvaluatedItem& item) { item.is_parsed = false; }},
      {"parse_failures", "calls", [](EvaluatedItem& item) { item.is_parsed = false; }},
      {"new_loops", "sums", [](EvaluatedItem& item) { item.is_loop = true; }},
      {"loops", "sums", [](EvaluatedItem& item) { item.is_loop = true; }},
      {"new_refusals", "requests",
       [](EvaluatedItem& item) { spoil(item), item.parts["refused"] = 1; }},
      {"new_unsafe", "requests", [](EvaluatedItem& item) { item.parts["unsafe"] = 1; }},
      {"unsafe", "requests", [](EvaluatedItem& item) { item.parts["unsafe"] = 1; }},
      {"new_errors", "facts", [](EvaluatedItem& item) { item.error = "gone"; }},
      {"critical_lost", "calls", spoil},
      {"flips", "facts", spoil},
      {"lost", "facts", spoil},
      {"digest_differences", "texts", [](EvaluatedItem& item) { item.digest = "x"; }},
      {"input_differences", "texts", [](EvaluatedItem& item) { item.prompt_sha256 = "x"; }},
      {"recall_lost", "niah_single", spoil},
  };
  Evaluation base = make_evaluation(kSmall, "base.eval");
  change_items(base, "calls",
               [](EvaluatedItem& item, size_t number) { item.is_critical = number < 5; });
  for (const CountCase& one : cases) {
    EXPECT_EQ(judge(one.metric, "", base, base).outcome, GateOutcome::kPasses) << one.metric;
    Evaluation cand = make_evaluation(kSmall, "cand.eval");
    change_items(cand, one.task, [&](EvaluatedItem& item, size_t number) {
      if (number == 2) one.breaks(item);
    });
    const RuleVerdict found = judge(one.metric, "", base, cand);
    EXPECT_EQ(found.outcome, GateOutcome::kRefused) << one.metric;
    EXPECT_EQ(found.found, 1) << one.metric;
    ASSERT_EQ(found.items.size(), 1) << one.metric;
    EXPECT_EQ(found.items[0], std::string(one.task) + "/2") << one.metric;
    EXPECT_EQ(judge(one.metric, "bound = 1", base, cand).outcome, GateOutcome::kPasses)
        << one.metric;
  }
}

TEST(CountRules, SayWhereThereIsNothingToCount) {
  const MadeSuite texts = {.texts = 3};
  const Evaluation base = make_evaluation(texts, "base.eval");
  for (const char* metric : {"parse_lost", "new_refusals", "critical_lost", "recall_lost",
                             "success_drop", "first_token_ratio", "margin_drop"}) {
    const std::string more =
        std::string(metric).ends_with("drop") || std::string(metric).ends_with("ratio")
            ? "bound = 0.5"
            : "";
    EXPECT_EQ(judge(metric, more, base, base).outcome, GateOutcome::kNotMeasured) << metric;
  }
  const Verdict open = run_gate(gate_of(rule_of("flips")), base, base);
  EXPECT_EQ(open.exit_code(), 4);
  const Verdict held = run_gate(
      gate_of(rule_of("flips", "optional = true") + rule_of("digest_differences")), base, base);
  EXPECT_EQ(held.exit_code(), 0);
  EXPECT_EQ(held.rules[0].text(), "not measured: flips: no answer in scope (optional)");
  // Nothing but optional rules, none of which was measured, is no verdict.
  const Verdict none = run_gate(gate_of(rule_of("flips", "optional = true")), base, base);
  EXPECT_EQ(none.exit_code(), 4);
}

TEST(RecallRules, HoldUpToTheLengthThatTheBaselineRecalls) {
  Evaluation base = make_evaluation(kSmall, "base.eval");
  change_items(base, "niah_single", [](EvaluatedItem& item, size_t number) {
    if (number == 15) spoil(item);  // of 2,048 tokens
  });
  const Evaluation cand = with_spoilt(kSmall, "niah_single", 10, 10);
  const RuleVerdict lost = judge("recall_lost", "", base, cand);
  EXPECT_EQ(lost.outcome, GateOutcome::kPasses);
  EXPECT_EQ(lost.num_items, 10);
  EXPECT_EQ(judge("recall_missed", "length = 1024", base, cand).outcome, GateOutcome::kPasses);
  const RuleVerdict missed = judge("recall_missed", "length = 2048", base, cand);
  EXPECT_EQ(missed.outcome, GateOutcome::kRefused);
  EXPECT_EQ(missed.found, 10);
  EXPECT_EQ(judge("recall_missed", "length = 1000", base, cand).outcome, GateOutcome::kNotMeasured);
}

/// Texts of which a token in `every` diverges by about half a nat.
Evaluation with_divergence(const MadeSuite& made, int every) {
  Evaluation evaluation = make_evaluation(made, "cand.eval");
  int number = 0;
  change_items(evaluation, "texts", [&](EvaluatedItem& item, size_t) {
    for (TextPosition& position : item.positions) {
      if (number++ % every != 0) continue;
      position.logprob = std::log(0.1F);
      position.best = {{position.token + 1, std::log(0.5F)},
                       {position.token + 2, std::log(0.2F)},
                       {position.token, std::log(0.1F)}};
    }
  });
  return evaluation;
}

TEST(TextRules, DecideByTheirBounds) {
  const MadeSuite made = {.texts = 60};
  const Evaluation base = make_evaluation(made, "base.eval");
  // About 0.57 nats of every tenth token.
  const Evaluation cand = with_divergence(made, 10);
  const double mean = judge("kl_mean", "bound = 1", base, cand).found;
  EXPECT_NEAR(mean, 0.057, 0.02);
  const auto bound = [&](double share) { return "bound = " + std::to_string(share * mean); };
  EXPECT_EQ(judge("kl_mean", bound(1.2), base, cand).outcome, GateOutcome::kPasses);
  EXPECT_EQ(judge("kl_mean", bound(0.8), base, cand).outcome, GateOutcome::kRefused);
  EXPECT_EQ(judge("kl_mean", bound(1.001), base, cand).outcome, GateOutcome::kInconclusive);
  EXPECT_EQ(judge("kl_quantile", "bound = 0.1\nquantile = 0.8", base, cand).outcome,
            GateOutcome::kPasses);
  EXPECT_EQ(judge("kl_quantile", "bound = 0.1\nquantile = 0.95", base, cand).outcome,
            GateOutcome::kRefused);
  EXPECT_EQ(judge("kl_quantile", "bound = 0.1\nquantile = 0.9", base, cand).outcome,
            GateOutcome::kInconclusive);
  const RuleVerdict few = judge("kl_quantile", "bound = 0.1\nquantile = 0.9999", base, base);
  EXPECT_EQ(few.outcome, GateOutcome::kInconclusive);
  EXPECT_EQ(few.interval.upper, INFINITY);
  EXPECT_EQ(few.items_needed, 29956);
  EXPECT_EQ(judge("top_disagreement", "bound = 0.12", base, cand).outcome, GateOutcome::kPasses);
  EXPECT_EQ(judge("top_disagreement", "bound = 0.08", base, cand).outcome, GateOutcome::kRefused);
  EXPECT_EQ(judge("text_drop", "bound = 0.2", base, cand).outcome, GateOutcome::kPasses);
  EXPECT_EQ(judge("text_drop", "bound = 0.1", base, cand).outcome, GateOutcome::kRefused);
}

TEST(TextRules, TakeTheirBoundFromNoise) {
  const MadeSuite made = {.texts = 60};
  const Evaluation base = make_evaluation(made, "base.eval");
  const std::vector<Evaluation> noise = {with_divergence(made, 100), with_divergence(made, 40)};
  const GateFile gate = gate_of(rule_of("kl_mean", "times_noise = 2"));
  const RuleVerdict more = run_gate(gate, base, with_divergence(made, 5), noise).rules[0];
  EXPECT_EQ(more.outcome, GateOutcome::kRefused);
  EXPECT_EQ(more.rule.bound, 2 * more.noise[1]);
  EXPECT_NE(more.text().find(" nats, 2 times the noise; "), std::string::npos) << more.text();
  EXPECT_EQ(run_gate(gate, base, with_divergence(made, 40), noise).outcome, GateOutcome::kPasses);
  // The verdict is kept with the bound that was held, and with what set it.
  const Json rule = Json::parse(verdict_json(run_gate(gate, base, base, noise)))["rules"][0];
  EXPECT_EQ(rule["times_noise"], 2);
  EXPECT_NEAR(rule["bound"].get<double>(), more.rule.bound, 1e-12);
  // Where nothing tells what noise does there is no bound.
  const Verdict open = run_gate(gate, base, with_divergence(made, 5));
  EXPECT_EQ(open.outcome, GateOutcome::kInconclusive);
  EXPECT_EQ(open.rules[0].text(),
            "not measured: kl_mean: noise sets its bound, and was not measured");
}

TEST(TextRules, SayThatOneTextTellsNoSpread) {
  const MadeSuite made = {.texts = 1};
  const Evaluation base = make_evaluation(made, "base.eval");
  const RuleVerdict found = judge("kl_mean", "bound = 1", base, with_divergence(made, 10));
  EXPECT_EQ(found.outcome, GateOutcome::kInconclusive);
  EXPECT_NE(found.text().find("; one group alone gives no interval"), std::string::npos);
  EXPECT_EQ(judge("kl_mean", "bound = 1\nkind = \"not_worse\"", base, base).outcome,
            GateOutcome::kPasses);
  EXPECT_EQ(judge("kl_mean", "bound = 1e-6\nkind = \"not_worse\"", base, with_divergence(made, 10))
                .outcome,
            GateOutcome::kInconclusive);
}

TEST(ScoreRules, DecideByTheirBounds) {
  const Evaluation base = make_evaluation(kSmall, "base.eval");
  Evaluation cand = make_evaluation(kSmall, "cand.eval");
  const auto reference = [](double size) {
    return [size](EvaluatedItem& item, size_t number) {
      item.reference_tokens = 4;
      item.reference_logprob = -4 - size * static_cast<double>(number % 5);
    };
  };
  Evaluation told = base;
  change_items(told, "sums", reference(0));
  change_items(cand, "sums", reference(0.2));
  EXPECT_NEAR(judge("reference_drop", "bound = 0.2", told, cand).found, 0.1, 1e-12);
  EXPECT_EQ(judge("reference_drop", "bound = 0.2", told, cand).outcome, GateOutcome::kPasses);
  EXPECT_EQ(judge("reference_drop", "bound = 0.05", told, cand).outcome, GateOutcome::kRefused);
  EXPECT_EQ(judge("reference_drop", "bound = 0.1", told, cand).outcome, GateOutcome::kInconclusive);
  change_items(cand, "facts", [](EvaluatedItem& item, size_t number) {
    for (double& logprob : item.choice_logprobs) logprob += static_cast<double>(number % 3);
    item.choice_logprobs[static_cast<size_t>(item.right_choice)] -= 1;
  });
  EXPECT_NEAR(judge("margin_drop", "bound = 2", base, cand).found, 1, 1e-12);
  EXPECT_EQ(judge("margin_drop", "bound = 2", base, cand).outcome, GateOutcome::kPasses);
  EXPECT_EQ(judge("margin_drop", "bound = 0.5", base, cand).outcome, GateOutcome::kRefused);
  EXPECT_EQ(judge("score_drop", "bound = 0.1", base, with_spoilt(kSmall, "sums", 30)).outcome,
            GateOutcome::kRefused);
}

TEST(DurationRules, AreUndecidedWhereTheIntervalSpansTheBound) {
  const MadeSuite made = {.answers = 60};
  const Evaluation base = make_evaluation(made, "base.eval");
  const auto slower = [&](double times) {
    Evaluation cand = make_evaluation(made, "cand.eval");
    change_items(cand, "sums", [&](EvaluatedItem& item, size_t number) {
      const double noise = 1 + 0.05 * (static_cast<double>(number % 7) - 3) / 3;
      item.first_token_seconds *= times * noise;
      item.total_seconds *= times * noise;
    });
    return cand;
  };
  for (const char* metric : {"first_token_ratio", "token_ratio"}) {
    EXPECT_EQ(judge(metric, "bound = 1.1", base, slower(1.0)).outcome, GateOutcome::kPasses);
    EXPECT_EQ(judge(metric, "bound = 1.1", base, slower(1.1)).outcome, GateOutcome::kInconclusive);
    EXPECT_EQ(judge(metric, "bound = 1.1", base, slower(1.2)).outcome, GateOutcome::kRefused);
    EXPECT_NEAR(judge(metric, "bound = 1.1", base, slower(1.2)).found, 1.2, 1e-9);
  }
}

TEST(StandIns, DecideWhereTheOtherRuleCannot) {
  const MadeSuite made = {.choices = 120};
  const Evaluation base = make_evaluation(made, "base.eval");
  Evaluation cand = make_evaluation(made, "cand.eval");
  change_items(cand, "facts", [](EvaluatedItem& item, size_t number) {
    item.choice_logprobs[static_cast<size_t>(item.right_choice)] -=
        0.01 * static_cast<double>(number % 3);
  });
  const std::string rules = rule_of("success_drop", "bound = 0.01") +
                            rule_of("sureness_drop", "bound = 0.01\nstands_for = \"success_drop\"");
  const Verdict held = run_gate(gate_of(rules), base, cand);
  EXPECT_EQ(held.outcome, GateOutcome::kPasses);
  EXPECT_EQ(held.rules[0].decided_by, "sureness_drop");
  EXPECT_GT(held.rules[0].interval.upper, 0.01);
  EXPECT_NEAR(held.rules[0].confidence, 0.975, 1e-12);  // two ways to pass share 0.05
  EXPECT_NE(held.rules[0].text().find("; decided by 'sureness_drop'"), std::string::npos);
  // What stands for another rule refuses nothing.
  change_items(cand, "facts", [](EvaluatedItem& item, size_t) {
    item.choice_logprobs[static_cast<size_t>(item.right_choice)] -= 2;
  });
  const Verdict open = run_gate(gate_of(rules), base, cand);
  EXPECT_EQ(open.outcome, GateOutcome::kInconclusive);
  EXPECT_EQ(open.rules[1].outcome, GateOutcome::kInconclusive);
  EXPECT_TRUE(std::isnan(open.rules[1].p_value));
  // A task without such scores is not stood for.
  const Evaluation mixed = make_evaluation(kSmall, "base.eval");
  EXPECT_EQ(run_gate(gate_of(rules), mixed, mixed).rules[1].why,
            "task 'sums' has items without choices and without a reference answer");
}

TEST(Gates, CorrectForTheirRules) {
  // 7 lost and 1 gained: p = 9/256 by itself, and twice that beside another test.
  const Evaluation base = with_spoilt(kLarge, "sums", 1, 100);
  const Evaluation cand = with_spoilt(kLarge, "sums", 7);
  const std::string rule = rule_of("success_drop", "bound = 0");
  const Verdict alone = run_gate(gate_of(rule), base, cand);
  EXPECT_NEAR(alone.rules[0].p_holm, 9 / 256.0, 1e-12);
  EXPECT_EQ(alone.outcome, GateOutcome::kRefused);
  EXPECT_EQ(alone.exit_code(), 3);
  const Verdict two = run_gate(gate_of(rule + rule_of("token_ratio", "bound = 1.1")), base, cand);
  EXPECT_NEAR(two.rules[0].p_holm, 18 / 256.0, 1e-12);
  EXPECT_EQ(two.outcome, GateOutcome::kInconclusive);
}

TEST(Gates, PrintWhatNoiseAloneDoes) {
  const Evaluation base = make_evaluation(kLarge, "base.eval");
  const std::vector<Evaluation> noise = {with_spoilt(kLarge, "sums", 3),
                                         with_spoilt(kLarge, "sums", 13), base};
  const Verdict verdict =
      run_gate(gate_of(rule_of("success_drop", "bound = 0.01") + rule_of("lost", "bound = 100")),
               base, with_spoilt(kLarge, "sums", 2), noise);
  EXPECT_EQ(verdict.noise_sha256.size(), 3);
  EXPECT_EQ(verdict.rules[1].noise, (std::vector<double>{3, 13, 0}));
  EXPECT_NE(verdict.rules[0].text().find("; noise alone: up to 1.00 % in 3"), std::string::npos)
      << verdict.rules[0].text();
}

TEST(Gates, DoNotRefuseWhatNoiseDoes) {
  const Evaluation base = make_evaluation(kLarge, "base.eval");
  const Evaluation cand = with_spoilt(kLarge, "sums", 30);
  const std::vector<Evaluation> less = {with_spoilt(kLarge, "sums", 29, 100), base};
  const std::vector<Evaluation> more = {base, with_spoilt(kLarge, "sums", 30, 100)};
  const std::string rules = rule_of("success_drop", "bound = 0.01\nbeyond_noise = true") +
                            rule_of("lost", "beyond_noise = true");
  EXPECT_EQ(run_gate(gate_of(rules), base, cand).outcome, GateOutcome::kRefused);
  EXPECT_EQ(run_gate(gate_of(rules), base, cand, less).outcome, GateOutcome::kRefused);
  const Verdict held = run_gate(gate_of(rules), base, cand, more);
  EXPECT_EQ(held.outcome, GateOutcome::kInconclusive);
  for (const RuleVerdict& rule : held.rules) {
    EXPECT_EQ(rule.outcome, GateOutcome::kInconclusive);
    EXPECT_TRUE(rule.is_within_noise);
    EXPECT_TRUE(rule.text().ends_with("; noise alone does as much")) << rule.text();
  }
  // A rule that does not ask for it stays as it is.
  EXPECT_EQ(run_gate(gate_of(rule_of("lost")), base, cand, more).outcome, GateOutcome::kRefused);
}

TEST(Gates, RefuseWhatIsNotWhole) {
  const Evaluation base = make_evaluation(kSmall, "base.eval");
  const auto message = [&](const Evaluation& cand) {
    try {
      run_gate(GateFile::open("default"), base, cand);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  Evaluation cut = base;
  cut.path = "cand.eval";
  cut.items.pop_back();
  EXPECT_EQ(message(cut),
            "cand.eval: has 145 items, and base.eval 146, of which 145 are in both; "
            "expected the same ones");
  cut.is_complete = false;
  EXPECT_EQ(message(cut),
            "cand.eval: holds 145 items and is not complete; expected a whole result (`vitrine "
            "eval` with the same arguments goes on where it stopped)");
}

TEST(BuiltinGates, SayWhatTheyAreFor) {
  const MadeSuite made = {
      .answers = 700, .choices = 300, .calls = 300, .safety = 60, .needles = 20, .texts = 60};
  const Evaluation base = make_evaluation(made, "base.eval");
  const std::vector<Evaluation> noise = {with_divergence(made, 100)};
  for (const std::string& name : builtin_gates()) {
    const Verdict same = run_gate(GateFile::open(name), base, base, noise);
    EXPECT_EQ(same.outcome, GateOutcome::kPasses) << same.text();
  }
  const Evaluation loses = with_spoilt(made, "calls", 60);
  const Verdict refused = run_gate(GateFile::open("default"), base, loses);
  EXPECT_EQ(refused.outcome, GateOutcome::kRefused);
  EXPECT_EQ(refused.rules[2].outcome, GateOutcome::kRefused);
  const Evaluation one = with_spoilt(made, "sums", 1);
  EXPECT_EQ(run_gate(GateFile::open("default"), base, one).outcome, GateOutcome::kPasses);
  EXPECT_EQ(run_gate(GateFile::open("exact"), base, one).exit_code(), 3);
  const Evaluation diverges = with_divergence(made, 10);
  EXPECT_EQ(run_gate(GateFile::open("rounding"), base, diverges, noise).exit_code(), 3);
  EXPECT_EQ(run_gate(GateFile::open("rounding"), base, noise[0], noise).exit_code(), 0);
}

TEST(Verdicts, HaveAJsonForm) {
  const Evaluation base = make_evaluation(kSmall, "base.eval");
  const Verdict verdict =
      run_gate(GateFile::open("default"), base, with_spoilt(kSmall, "calls", 10));
  const std::string text = verdict_json(verdict);
  EXPECT_EQ(text, verdict_json(
                      run_gate(GateFile::open("default"), base, with_spoilt(kSmall, "calls", 10))));
  const Json json = Json::parse(text);
  EXPECT_EQ(json["gate"], "default");
  EXPECT_EQ(json["outcome"], "refused");
  EXPECT_EQ(json["exit_code"], 3);
  EXPECT_EQ(json["baseline_sha256"], "hash of base.eval");
  EXPECT_EQ(json["rules"].size(), verdict.rules.size());
  EXPECT_EQ(json["rules"][2]["rule"], "task success");
  EXPECT_EQ(json["rules"][2]["outcome"], "refused");
  EXPECT_EQ(json["rules"][2]["num_breaking"], 10);
  EXPECT_TRUE(json["rules"][0]["interval"][0].is_null());
}

}  // namespace
}  // namespace vitrine::testing
