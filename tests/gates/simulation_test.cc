// SPDX-License-Identifier: Apache-2.0
// Gates on evaluations that are drawn: how often noise is refused, and how often damage.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/gates/made_evaluations.h"

namespace vitrine::testing {
namespace {

/// A gate of the usual rules, and evaluations in which only noise is at work: as many items are
/// lost as are gained, and texts and durations scatter.
Evaluation with_noise(const MadeSuite& made, double flips, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform;
  std::normal_distribution<double> normal;
  Evaluation evaluation = make_evaluation(made, "cand.eval");
  for (EvaluatedItem& item : evaluation.items) {
    if (item.task == "sums" && uniform(random) < flips) spoil(item);
    item.first_token_seconds *= std::exp(0.2 * normal(random));
    item.total_seconds = item.first_token_seconds + 0.2 * std::exp(0.2 * normal(random));
  }
  return evaluation;
}

TEST(Simulations, FalseAlarmsStayBelowTheFamilysLevel) {
  const MadeSuite made = {.answers = 400};
  const GateFile gate =
      gate_of(rule_of("success_drop", "bound = 0.01") +
              rule_of("first_token_ratio", "bound = 1.0") + rule_of("token_ratio", "bound = 1.0"));
  std::mt19937_64 random(7);
  int refused = 0;
  constexpr int kRuns = 600;
  for (int run = 0; run < kRuns; ++run) {
    const Evaluation base = with_noise(made, 0.05, random), cand = with_noise(made, 0.05, random);
    if (run_gate(gate, base, cand).outcome == GateOutcome::kRefused) ++refused;
  }
  // 0.05 and three standard errors of so many runs.
  EXPECT_LE(refused, 0.05 * kRuns + 3 * std::sqrt(0.05 * 0.95 * kRuns));
  EXPECT_GE(refused, 1);
}

TEST(Simulations, DamageIsFound) {
  const MadeSuite made = {.answers = 400};
  const GateFile gate =
      gate_of(rule_of("success_drop", "bound = 0.01") +
              rule_of("first_token_ratio", "bound = 1.1") + rule_of("token_ratio", "bound = 1.1"));
  std::mt19937_64 random(8);
  int refused = 0;
  constexpr int kRuns = 200;
  for (int run = 0; run < kRuns; ++run) {
    const Evaluation base = with_noise(made, 0.02, random), cand = with_noise(made, 0.09, random);
    if (run_gate(gate, base, cand).outcome == GateOutcome::kRefused) ++refused;
  }
  EXPECT_GE(refused, 0.9 * kRuns);
}

}  // namespace
}  // namespace vitrine::testing
