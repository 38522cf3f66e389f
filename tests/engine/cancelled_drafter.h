// SPDX-License-Identifier: Apache-2.0
// Answers that end while somebody guesses for them.
#pragma once

#include <atomic>
#include <vector>

#include "tests/engine/speculated_answer.h"

namespace vitrine::testing {

/// Another drafter, whose answer's flag is raised where it is asked for guesses the n-th time.
class RaisingDrafter final : public Drafter {
 public:
  RaisingDrafter(Drafter& drafter, int raises_at, std::atomic<bool>& flag)
      : drafter_(drafter), left_(raises_at), flag_(flag) {}
  std::string_view name() const override { return drafter_.name(); }
  std::span<const int> feature_layers() const override { return drafter_.feature_layers(); }
  DraftTextId start(const DraftText& text) override {
    EXPECT_EQ(text.cancelled, &flag_);
    return drafter_.start(text);
  }
  DraftTextId fork(DraftTextId text) override { return drafter_.fork(text); }
  void commit(DraftTextId text, std::span<const int32_t> tokens) override {
    drafter_.commit(text, tokens);
  }
  void truncate(DraftTextId text, int64_t length) override { drafter_.truncate(text, length); }
  void observe(DraftTextId text, int64_t first, std::span<const float> rows) override {
    drafter_.observe(text, first, rows);
  }
  void propose(std::span<DraftProposal> proposals) override {
    if (--left_ == 0) flag_ = true;
    try {
      drafter_.propose(proposals);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCancelled) << error.what();
      was_cancelled = true;
      throw;
    }
  }
  void release(DraftTextId text, bool is_whole) override { drafter_.release(text, is_whole); }

  bool was_cancelled = false;  // in a step of its own

 private:
  Drafter& drafter_;
  int left_;
  std::atomic<bool>& flag_;
};

/// A drafter that runs a model is cancelled with its answer and guesses for the rest of it later;
/// the tokens are the plain answer's.
inline void expect_cancelled_guesses(Stepper& stepper, Drafter& drafter, const AskedAnswer& asked) {
  const std::vector<int32_t> expected = generate(stepper, asked.prompt, asked.options).tokens;
  for (const int raises_at : {1, 2, 4}) {
    SCOPED_TRACE(raises_at);
    std::atomic<bool> flag{false};
    RaisingDrafter raising(drafter, raises_at, flag);
    GenerateOptions options = asked.options;
    options.sequence = stepper.create_sequence();
    options.cancelled = &flag;
    options.speculation.drafter = &raising;
    options.speculation.max_drafts = 3;
    const GenerateResult cancelled = generate(stepper, asked.prompt, options);
    EXPECT_EQ(cancelled.reason, StopReason::kCancelled);
    EXPECT_TRUE(raising.was_cancelled);
    EXPECT_EQ(cancelled.speculation.problem, "");
    std::vector<int32_t> text = asked.prompt, all = cancelled.tokens;
    text.insert(text.end(), all.begin(), all.end());
    const auto held = static_cast<size_t>(stepper.length(options.sequence));
    ASSERT_EQ(held + 1, text.size());
    options.cancelled = nullptr;
    options.speculation.drafter = &drafter;
    options.max_new_tokens -= static_cast<int>(all.size());
    const GenerateResult rest = generate(stepper, std::span(text).subspan(held), options);
    EXPECT_EQ(rest.speculation.problem, "");
    EXPECT_GT(rest.speculation.num_draft_tokens, 0);
    all.insert(all.end(), rest.tokens.begin(), rest.tokens.end());
    EXPECT_EQ(all, expected);
    stepper.release(options.sequence);
  }
}

}  // namespace vitrine::testing
