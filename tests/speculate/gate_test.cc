// SPDX-License-Identifier: Apache-2.0
// When it pays to guess: by counts and a table of costs alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <random>

#include "vitrine/speculate.h"

namespace vitrine {
namespace {

PassCosts usual_costs() { return PassCosts({{1, 10}, {2, 11.2}, {4, 13}, {8, 22}, {16, 40}}); }

SpeculationOptions gated(double threshold = 1) {
  SpeculationOptions options;
  options.costs = usual_costs();
  options.threshold = threshold;
  return options;
}

struct Ran {
  int64_t tokens = 0, passes = 0, speculated = 0;
  double cost = 0;  // in passes of one token
  std::vector<int32_t> limits;
};

/// An answer of so many tokens; `accepts`: how many of a pass's drafts are right, by the tokens
/// that there are.
Ran run_gate(DraftGate& gate, const PassCosts& costs, int64_t tokens,
             const std::function<int32_t(int64_t, int32_t)>& accepts) {
  Ran ran;
  while (ran.tokens < tokens) {
    const int32_t limit = gate.limit();
    const int32_t accepted = limit > 0 ? std::min(limit, accepts(ran.tokens, limit)) : 0;
    gate.pass(limit, accepted);
    ran.limits.push_back(limit);
    ran.tokens += accepted + 1;
    ran.cost += costs.of(limit + 1);
    ran.speculated += limit > 0;
    ++ran.passes;
  }
  return ran;
}

TEST(PassCosts, AreLinesBetweenWhatIsKnown) {
  const PassCosts costs = usual_costs();
  EXPECT_DOUBLE_EQ(costs.of(1), 1);
  EXPECT_DOUBLE_EQ(costs.of(2), 1.12);
  EXPECT_DOUBLE_EQ(costs.of(3), 1.21);
  EXPECT_DOUBLE_EQ(costs.of(16), 4);
  EXPECT_DOUBLE_EQ(costs.of(24), 5.8);
  EXPECT_DOUBLE_EQ(PassCosts({{1, 5}}).of(7), 7);
  EXPECT_DOUBLE_EQ(PassCosts({{2, 1}, {1, 2}}).of(9), 1) << "never less than a pass of one token";
  EXPECT_TRUE(std::isnan(PassCosts().of(3)));
  EXPECT_TRUE(PassCosts().empty());
}

TEST(PassCosts, RefuseATableThatSaysNothing) {
  const auto refused = [](std::vector<PassCost> costs) {
    try {
      PassCosts table(std::move(costs));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("expected"), std::string::npos);
      return true;
    }
    return false;
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({{2, 1}}));
  EXPECT_TRUE(refused({{1, 0}}));
  EXPECT_TRUE(refused({{1, -1}}));
  EXPECT_TRUE(refused({{1, 1}, {0, 1}}));
  EXPECT_TRUE(refused({{1, 1}, {1, 2}}));
  EXPECT_TRUE(refused({{1, std::nan("")}}));
  EXPECT_TRUE(refused({{1, INFINITY}}));
  EXPECT_FALSE(refused({{1, 1}}));
}

TEST(DraftGate, LosesLittleToADrafterThatIsAlwaysWrong) {
  const PassCosts costs = usual_costs();
  for (const int64_t tokens : {256, 512, 1024, 8192}) {
    DraftGate gate(gated());
    const Ran ran = run_gate(gate, costs, tokens, [](int64_t, int32_t) { return 0; });
    EXPECT_EQ(ran.passes, tokens);
    EXPECT_LE(ran.cost, 1.02 * static_cast<double>(tokens));
    EXPECT_GT(ran.speculated, 4) << "it is tried again";
  }
}

TEST(DraftGate, GrowsToTheLengthThatPays) {
  const PassCosts costs = usual_costs();
  DraftGate gate(gated());
  const Ran ran = run_gate(gate, costs, 512, [](int64_t, int32_t limit) { return limit; });
  EXPECT_EQ(ran.limits.front(), 2) << "1.75 tokens for 1.21 passes";
  EXPECT_EQ(*std::ranges::max_element(ran.limits), 8);
  EXPECT_LT(ran.cost, 512 / 3.0);
  // Every second draft is wrong: two in a pass are too many.
  DraftGate doubtful(gated());
  int64_t asked = 0;
  const Ran half = run_gate(doubtful, costs, 512, [&](int64_t, int32_t) { return asked++ % 2; });
  EXPECT_LT(*std::ranges::max_element(half.limits), 8);
  EXPECT_LE(half.cost, 512);
}

TEST(DraftGate, ComesBackWhereTheTextTurns) {
  const PassCosts costs = usual_costs();
  DraftGate gate(gated());
  const auto turns = [](int64_t tokens, int32_t limit) { return tokens < 200 ? 0 : limit; };
  const Ran ran = run_gate(gate, costs, 1200, turns);
  EXPECT_LT(ran.cost, 1200 * 0.5);
}

TEST(DraftGate, RepeatsUnderTheSameTable) {
  const auto some = [](int64_t tokens, int32_t) {
    return static_cast<int32_t>(tokens * 7 % 5 % 3);
  };
  DraftGate one(gated()), other(gated());
  EXPECT_EQ(run_gate(one, usual_costs(), 900, some).limits,
            run_gate(other, usual_costs(), 900, some).limits);
}

TEST(DraftGate, GoesOffBelowTheThresholdThatIsAskedFor) {
  const auto one = [](int64_t, int32_t) { return 1; };
  DraftGate modest(gated(1)), greedy(gated(50)), generous(gated(0));
  EXPECT_GT(run_gate(modest, usual_costs(), 200, one).speculated, 50);
  EXPECT_LT(run_gate(greedy, usual_costs(), 200, one).speculated, 20);
  const Ran wrong = run_gate(generous, usual_costs(), 200, [](int64_t, int32_t) { return 0; });
  EXPECT_EQ(wrong.speculated, wrong.passes);
}

TEST(DraftGate, IsOpenWithoutCosts) {
  SpeculationOptions options;
  options.max_drafts = 5;
  DraftGate gate(options);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(gate.limit(), 5);
    gate.pass(5, 0);
  }
}

/// Passes of one token that an answer of so many tokens costs with a drafter that is always wrong
/// and takes `call` of them; its first calls, so many, count for nothing.
double cost_of_answer(double call, int64_t tokens, int64_t free_calls, std::optional<double> given,
                      int64_t& calls) {
  SpeculationOptions options = gated();
  options.draft_cost = given;
  DraftGate gate(options);
  double cost = 0;
  calls = 0;
  for (int64_t token = 0; token < tokens; ++token) {
    const int32_t limit = gate.limit();
    if (limit > 0) {
      gate.drafted(call * options.costs.of_one());
      if (++calls > free_calls) cost += call;
    }
    gate.pass(limit, 0);
    cost += options.costs.of(limit + 1);
  }
  return cost;
}

TEST(DraftGate, LosesLittleToADrafterThatIsWrongOrSlow) {
  for (const double call : {0.0, 0.01, 0.3, 2.0, 5.0, 50.0, 1e6}) {
    for (const int64_t tokens : {256, 300, 1000, 5000}) {
      for (const bool is_given : {false, true}) {
        int64_t calls = 0;
        const auto given = is_given ? std::optional(call * usual_costs().of_one()) : std::nullopt;
        const double cost = cost_of_answer(call, tokens, 2, given, calls);
        EXPECT_LE(cost, 1.02 * static_cast<double>(tokens)) << call << ", " << tokens;
        EXPECT_GE(calls, 2);
      }
    }
  }
  // One that cannot pay whatever it says is not asked a third time.
  int64_t calls = 0;
  cost_of_answer(50, 100000, 2, std::nullopt, calls);
  EXPECT_EQ(calls, 2);
  cost_of_answer(0.5, 100000, 2, std::nullopt, calls);
  EXPECT_GT(calls, 20) << "one that could is tried again";
}

TEST(DraftGate, CountsCallsInVainAndWhatTheyCost) {
  SpeculationOptions options = gated();
  options.draft_cost = 0.5 * options.costs.of_one();
  DraftGate gate(options);
  EXPECT_EQ(gate.limit(), 3) << "a call costs what it costs, however long";
  gate.drafted(0);
  gate.pass(0, 0);
  gate.drafted(0);
  gate.pass(0, 0);
  EXPECT_EQ(gate.limit(), 0) << "two calls that gave nothing and were not free";
  DraftGate paid(options);
  for (int i = 0; i < 50; ++i) {
    const int32_t limit = paid.limit();
    ASSERT_GT(limit, 0);
    paid.drafted(0);
    paid.pass(limit, limit);
  }
  EXPECT_EQ(paid.limit(), 8);
}

/// SmolLM2 and heads of one layer: what each guess takes, and how often it is right.
double speed_with_heads(double guess, double right, int64_t tokens, std::vector<int32_t>& limits) {
  SpeculationOptions options;
  options.costs = PassCosts({{1, 1}, {2, 1.04}, {4, 1.23}, {8, 2.04}});
  DraftGate gate(options);
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform;
  double cost = 0;
  int64_t made = 0;
  for (int call = 0; made < tokens; ++call) {
    const int32_t limit = gate.limit();
    limits.push_back(limit);
    int32_t accepted = 0;
    while (accepted < limit && uniform(random) < right) ++accepted;
    const double taken = guess * limit + (call == 0 ? 5 : 0);  // the first one reads the prompt
    if (limit > 0) gate.drafted(taken, limit);
    gate.pass(limit, accepted);
    cost += options.costs.of(limit + 1) + guess * limit;
    made += accepted + 1;
  }
  return static_cast<double>(made) / cost;
}

TEST(DraftGate, KeepsTheLengthThatPaysOfDraftersThatTakeTime) {
  std::vector<int32_t> limits;
  EXPECT_GE(speed_with_heads(0.1, 0.42, 4000, limits), 1.17) << "1.42 tokens for 1.14 passes";
  EXPECT_LT(std::ranges::count(limits, 0), std::ssize(limits) / 20);
  EXPECT_GE(speed_with_heads(0.1, 0.3, 4000, limits), 1.04);
  EXPECT_GE(speed_with_heads(0.1, 0.8, 4000, limits), 1.8) << "2.95 tokens for 1.53 passes";
  EXPECT_GE(speed_with_heads(0.1, 0, 4000, limits), 0.98);
  EXPECT_GE(speed_with_heads(0.6, 0.42, 4000, limits), 0.98) << "1.42 tokens for 1.64 passes";
  EXPECT_GE(speed_with_heads(0.6, 0.42, 100, limits), 0.95);
}

TEST(DraftCallCosts, AreLinesBehindTheFirstCall) {
  DraftCallCosts costs;
  costs.add(4, 50);  // the prompt
  EXPECT_EQ(costs.of(4), 0);
  costs.add(2, 1);
  EXPECT_DOUBLE_EQ(costs.of(2), 1);
  EXPECT_DOUBLE_EQ(costs.of(4), 2);
  costs.add(4, 1.5);
  EXPECT_DOUBLE_EQ(costs.of(3), 1.25);
  EXPECT_DOUBLE_EQ(costs.of(8), 2.5);
  EXPECT_DOUBLE_EQ(costs.of(1), 0.75);
  costs.add(2, 0.9);
  costs.add(2, 5);
  EXPECT_DOUBLE_EQ(costs.of(2), 0.9) << "the shortest";
}

TEST(DraftGate, TakesTheShorterOfTheFirstTwoCalls) {
  // The first one reads the prompt.
  DraftGate gate(gated());
  for (int i = 0; i < 30; ++i) {
    const int32_t limit = gate.limit();
    ASSERT_GT(limit, 0) << i;
    gate.drafted(i == 0 ? 1e4 : 0.1);
    gate.pass(limit, limit);
  }
}

}  // namespace
}  // namespace vitrine
