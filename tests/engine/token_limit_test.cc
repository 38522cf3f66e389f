// SPDX-License-Identifier: Apache-2.0
// What the limit of tokens took away from a constrained answer, and what it did not.
#include "tests/engine/constraint_fixture.h"

namespace vitrine::testing {
namespace {

TEST_F(ConstraintTest, TheLimitAnswersForWhatItTookAndForNothingElse) {
  const auto check = [&](const Grammar& grammar, int room, bool is_limited) {
    SCOPED_TRACE(room);
    options_.max_new_tokens = room;
    const GenerateResult result = run(grammar);
    EXPECT_TRUE(result.is_complete);
    EXPECT_EQ(result.constraint.limited > 0, is_limited);
    EXPECT_EQ(result.reason, is_limited ? StopReason::kLengthConstrained : StopReason::kComplete);
    return text_of(result);
  };
  EXPECT_EQ(stop_reason_name(StopReason::kLengthConstrained), "length_constrained");
  // Behind 'd' no end is known at any limit: no token spells 'e'.
  const Grammar open = Grammar::regex(table("e"), "ab|ade");
  EXPECT_EQ(check(open, 2, false), "ab");
  EXPECT_EQ(check(open, 40, false), "ab");
  // The long branch fits from 4 tokens on, whichever of the two is taken then.
  const Grammar branches = Grammar::regex(table(), "ab|axyz");
  EXPECT_EQ(check(branches, 2, true), "ab");
  EXPECT_EQ(check(branches, 3, true), "ab");
  check(branches, 4, false);
  check(branches, 40, false);
  // What is banned would not have come at any limit.
  options_.sampler.ban = {{'x'}};
  EXPECT_EQ(check(branches, 3, false), "ab");
  options_.sampler.ban = {};
  // Another attempt that the limit did not touch is no longer limited; its counts stay.
  options_.sampler = {.temperature = 1.5F, .seed = 4};
  int asked = 0;
  options_.validator = [&](std::span<const int32_t>) { return ++asked == 1; };
  check(branches, 3, true);
  options_.validator = nullptr;
}

TEST_F(ConstraintTest, ASqueezedAnswerThatEndsItselfSaysSo) {
  options_.max_new_tokens = 30;
  // 'e' leads beyond the limit: nothing else can follow, or an end of text or 'g'.
  const Grammar ends = Grammar::regex(table(), "[a-d]{2}(e[f-z]{40})?");
  const Grammar goes_on = Grammar::regex(table(), "[a-d]{2}(e[f-z]{40}|g)?");
  for (uint64_t seed = 0; seed < 40; ++seed) {
    options_.sampler = {.temperature = 1.5F, .seed = seed};
    GenerateResult result = run(ends);
    EXPECT_EQ(result.tokens.size(), 2u);
    EXPECT_EQ(result.reason, StopReason::kLengthConstrained);
    result = run(goes_on);
    EXPECT_EQ(result.tokens.size(), 3u);
    EXPECT_EQ(result.constraint.limited, 1);
    EXPECT_EQ(result.reason, StopReason::kLengthConstrained);
  }
  // With room for all of it the limit takes nothing.
  options_.max_new_tokens = 50;
  EXPECT_EQ(run(goes_on).constraint.limited, 0);
}

}  // namespace
}  // namespace vitrine::testing
