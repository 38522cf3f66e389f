// SPDX-License-Identifier: Apache-2.0
// When it pays to guess: by counts and a table of costs alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

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
  EXPECT_EQ(ran.limits.front(), 1);
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

}  // namespace
}  // namespace vitrine
