// SPDX-License-Identifier: Apache-2.0
// Generation under a constraint: masks, room, ends, deadlocks, and what is recorded of them.
#include <cmath>
#include <limits>
#include <regex>

#include "tests/engine/constraint_fixture.h"
#include "tests/support/in_sequence.h"
#include "vitrine/audit.h"

namespace vitrine::testing {
namespace {

TEST_F(ConstraintTest, GreedyAndSampledAnswersMatchWhateverTheRoom) {
  const Grammar grammar = Grammar::regex(table(), "(ab|cd){1,40}x[0-9]{2}");
  for (const float temperature : {0.0F, 1.5F}) {
    for (int room = 5; room < 25; ++room) {
      options_.sampler = {.temperature = temperature, .top_k = 3, .seed = 9};
      options_.max_new_tokens = room;
      const GenerateResult result = run(grammar);
      EXPECT_TRUE(std::regex_match(text_of(result), std::regex("(ab|cd){1,40}x[0-9]{2}")))
          << text_of(result);
      EXPECT_TRUE(result.is_complete);
      EXPECT_EQ(result.reason, result.constraint.limited > 0 ? StopReason::kLengthConstrained
                                                             : StopReason::kComplete);
      EXPECT_GT(result.constraint.masks, 4);
      EXPECT_GT(result.constraint.forced, 0);
      EXPECT_EQ(result.constraint.deadlocks, 0);
    }
  }
  options_.max_new_tokens = 4;
  const Error error = error_of([&] { run(grammar); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"5 tokens", "room for 4", "-n"})) << error.what();
}

TEST_F(ConstraintTest, BannedTokensLeaveTheMaskAndWhatIsKnownOfIt) {
  // The shortest way, of 2 tokens, leads through 'b'.
  const char* pattern = "ab|a(cd){3,9}";
  options_.sampler = {.temperature = 1.5F, .seed = 3, .ban = {{'b'}}};
  for (int room = 7; room < 20; ++room) {
    options_.max_new_tokens = room;
    const std::vector<int32_t> banned = banned_ids(options_.sampler);
    const GenerateResult result = run(Grammar::regex(table().without(banned), pattern));
    EXPECT_TRUE(std::regex_match(text_of(result), std::regex("a(cd){3,9}"))) << text_of(result);
    EXPECT_TRUE(result.is_complete);
  }
  options_.max_new_tokens = 6;
  const Error error = error_of(
      [&] { run(Grammar::regex(table().without(banned_ids(options_.sampler)), pattern)); });
  EXPECT_TRUE(is_one_line_with(error, {"7 tokens", "room for 6"})) << error.what();
  // A constraint that knows nothing of bans: what they leave it without is a deadlock.
  const GenerateResult result = run(Grammar::regex(table(), pattern));
  EXPECT_EQ(result.reason, StopReason::kDeadlock);
  options_.sampler.ban = {};
  options_.sampler.logit_bias = {{'c', -std::numeric_limits<float>::infinity()}};
  EXPECT_EQ(text_of(run(Grammar::regex(table(), pattern))), "ab");
}

TEST_F(ConstraintTest, ADeadlockIsFoundAndAttemptsAreJudged) {
  const Grammar grammar = Grammar::regex(table("e"), "[ab]{2}e");
  options_.sampler = {.temperature = 1.0F, .seed = 4};
  GenerateResult result = run(grammar);
  EXPECT_EQ(result.reason, StopReason::kDeadlock);
  EXPECT_EQ(stop_reason_name(result.reason), "deadlock");
  EXPECT_FALSE(result.is_complete);
  EXPECT_EQ(result.tokens.size(), 2u);
  EXPECT_EQ(result.constraint.deadlocks, 1);
  options_.deadlock_retries = 4;
  std::vector<int32_t> attempts;
  const auto constraint = grammar.start();
  options_.constraint = constraint.get();
  result = generate(*engine_, ids_, options_, [&](const TokenEvent& event) {
    attempts.push_back(event.attempt);
    return true;
  });
  EXPECT_EQ(result.reason, StopReason::kDeadlock);
  EXPECT_EQ(result.constraint.retries, 4);
  EXPECT_EQ(attempts.back(), 4);
  EXPECT_TRUE(std::is_sorted(attempts.begin(), attempts.end()));
}

TEST_F(ConstraintTest, AValidatorHasAnswersMadeAgain) {
  const Grammar grammar = Grammar::regex(table(), "[a-h]{4}");
  options_.sampler = {.temperature = 1.5F, .seed = 4};
  options_.validator_retries = 5;
  std::vector<std::vector<int32_t>> seen;
  options_.validator = [&](std::span<const int32_t> tokens) {
    seen.emplace_back(tokens.begin(), tokens.end());
    return seen.size() == 3;
  };
  SlabRing ring(1 << 22, SlabRing::WhenFull::kOverwrite);
  engine_->set_audit_sink(&ring);
  GenerateResult result = run(grammar);
  engine_->set_audit_sink(nullptr);
  EXPECT_EQ(result.reason, StopReason::kComplete);
  EXPECT_TRUE(result.is_complete);
  EXPECT_EQ(result.constraint.rejected_answers, 2);
  EXPECT_EQ(result.constraint.retries, 2);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen[2], result.tokens);
  EXPECT_FALSE(seen[0] == seen[1] && seen[1] == seen[2]);  // other random numbers
  for (const auto& answer : seen) EXPECT_EQ(answer.size(), 4u);
  // Each attempt is in the log, under its mask.
  std::vector<int32_t> attempts;
  for (const TokenRecord& record : ring.drain_records()) {
    if (!record.has_prediction || !record.prediction.generated) continue;
    EXPECT_EQ(record.prediction.constraint.allowed, 8);
    attempts.push_back(record.prediction.constraint.attempt);
  }
  EXPECT_EQ(attempts, (std::vector<int32_t>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}));

  int calls = 0;
  options_.validator = [&](std::span<const int32_t>) { return ++calls < 0; };
  result = run(grammar);
  EXPECT_EQ(result.reason, StopReason::kRejected);
  EXPECT_EQ(stop_reason_name(result.reason), "rejected");
  EXPECT_EQ(calls, 6);
  EXPECT_EQ(result.constraint.rejected_answers, 6);
  options_.constraint = nullptr;
  const Error error = error_of([&] { generate(*engine_, ids_, options_); });
  EXPECT_TRUE(is_one_line_with(error, {"validator", "constraint"})) << error.what();
}

/// Lets one token through with a mask, then `then` or none; without a mask it accepts anything.
class OneThenNothing : public Constraint {
 public:
  explicit OneThenNothing(int32_t vocab, int32_t then = -1) : vocab_(vocab), then_(then) {}
  int32_t vocab_size() const override { return vocab_; }
  bool allowed_tokens(std::span<uint32_t> mask) override {
    std::fill(mask.begin(), mask.end(), 0);
    const int32_t allowed = accepted_.empty() ? 34 : then_;
    if (allowed < 0) return false;
    mask[static_cast<size_t>(allowed) / 32] = 1U << (allowed % 32);
    return true;
  }
  bool accept(int32_t token) override {
    accepted_.push_back(token);
    return true;
  }
  void rollback(int32_t count) override {
    accepted_.resize(accepted_.size() - static_cast<size_t>(count));
  }
  bool is_complete() const override { return accepted_.size() >= 3; }
  std::string forced_bytes() override { return ""; }
  std::unique_ptr<Constraint> fork() const override {
    return std::make_unique<OneThenNothing>(*this);
  }

 private:
  int32_t vocab_, then_;
  std::vector<int32_t> accepted_;
};

TEST_F(ConstraintTest, AnAttemptThatIsValidStands) {
  OneThenNothing constraint(vocab());
  options_.constraint = &constraint;
  options_.max_new_tokens = 5;
  options_.deadlock_retries = 2;
  options_.sampler = {.temperature = 1.0F, .seed = 4};
  SlabRing ring(1 << 22, SlabRing::WhenFull::kOverwrite);
  engine_->set_audit_sink(&ring);
  const GenerateResult result = generate(*engine_, ids_, options_);
  engine_->set_audit_sink(nullptr);
  EXPECT_TRUE(result.is_complete);
  EXPECT_EQ(result.constraint.retries, 1);
  EXPECT_EQ(result.constraint.deadlocks, 1);
  EXPECT_NE(result.reason, StopReason::kDeadlock);
  std::vector<ConstraintDecision> decisions;
  for (const TokenRecord& record : ring.drain_records()) {
    if (record.has_prediction && record.prediction.generated) {
      decisions.push_back(record.prediction.constraint);
    }
  }
  ASSERT_EQ(decisions.size(), 1 + result.tokens.size());
  EXPECT_TRUE(decisions[0].is_forced());
  for (size_t i = 1; i < decisions.size(); ++i) {
    EXPECT_EQ(decisions[i].attempt, 1);
    EXPECT_EQ(decisions[i].allowed, 0);
  }
}

TEST_F(ConstraintTest, ABannedSequenceThatLeavesNothingIsADeadlock) {
  const Grammar only = Grammar::regex(table(), "a(bc|bd)");
  for (const float temperature : {0.0F, 1.5F}) {
    options_.sampler = {.temperature = temperature, .seed = 3, .ban = {{'a', 'b'}, {'d', 'a'}}};
    options_.deadlock_retries = 0;
    GenerateResult result = run(only);
    EXPECT_EQ(result.reason, StopReason::kDeadlock);
    EXPECT_EQ(text_of(result), "a");
    EXPECT_FALSE(result.is_complete);
    EXPECT_EQ(result.constraint.deadlocks, 1);
    options_.deadlock_retries = 2;
    result = run(only);
    EXPECT_EQ(result.constraint.retries, 2);
    EXPECT_EQ(result.reason, StopReason::kDeadlock);
    // What the ban leaves one token of is forced; an answer that is whole may end there.
    result = run(Grammar::regex(table(), "a(bc|ed)(a|e)"));
    EXPECT_EQ(text_of(result), "aede");
    EXPECT_EQ(result.constraint.forced, 4);
    result = run(Grammar::regex(table(), "aed(a{2})?"));
    EXPECT_EQ(text_of(result), "aed");
    EXPECT_TRUE(result.is_complete);
    EXPECT_EQ(result.constraint.deadlocks, 0);
  }
  // An attempt without a mask, under the same ban, that the constraint accepts.
  OneThenNothing constraint(vocab(), 35);
  options_.constraint = &constraint;
  options_.max_new_tokens = 5;
  options_.sampler = {.temperature = 1.0F, .seed = 4, .ban = {{34, 35}}};
  const GenerateResult result = generate(*engine_, ids_, options_);
  EXPECT_TRUE(result.is_complete);
  EXPECT_EQ(result.constraint.retries, 1);
  EXPECT_EQ(result.constraint.deadlocks, 1);
}

TEST_F(ConstraintTest, NearTheLimitABannedSequenceLeavesNoInvalidAnswer) {
  const Grammar grammar = Grammar::regex(table(), "(ab|acd|xy){1,9}z");
  options_.sampler = {.temperature = 1.5F, .ban = {{'a', 'b'}, {'y', 'x', 'y'}, {'d', 'z'}}};
  int whole = 0, deadlocks = 0;
  for (int room = 3; room < 27; ++room) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      options_.max_new_tokens = room;
      options_.sampler.seed = seed;
      const GenerateResult result = run(grammar);
      const std::string text = text_of(result);
      for (const char* banned : {"ab", "yxy", "dz"}) EXPECT_EQ(text.find(banned), text.npos);
      EXPECT_EQ(result.constraint.deadlocks, result.is_complete ? 0 : 1);
      const StopReason end =
          result.constraint.limited > 0 ? StopReason::kLengthConstrained : StopReason::kComplete;
      EXPECT_EQ(result.reason, result.is_complete ? end : StopReason::kDeadlock);
      EXPECT_EQ(std::regex_match(text, std::regex("(ab|acd|xy){1,9}z")), result.is_complete);
      ++(result.is_complete ? whole : deadlocks);
    }
  }
  EXPECT_GT(whole, 5);
  EXPECT_GT(deadlocks, 5);
}

/// A sink that keeps what it is told of failures.
class FailureSink : public SlabRing {
 public:
  FailureSink() : SlabRing(1 << 22, WhenFull::kOverwrite) {}
  void on_failure(const ConstraintFailure& failure) override { failures.push_back(failure); }
  std::vector<ConstraintFailure> failures;
};

TEST_F(ConstraintTest, EachFailureTellsWhereTheConstraintStood) {
  using Kind = ConstraintFailure::Kind;
  FailureSink sink;
  engine_->set_audit_sink(&sink);
  const auto prompt = static_cast<int64_t>(ids_.size());
  // Nothing leads on; an attempt without a mask meets a token that the expression refuses.
  options_.sampler = {.temperature = 1.0F, .seed = 4};
  options_.deadlock_retries = 1;
  GenerateResult result = run(Grammar::regex(table("e"), "[ab]{2}e"));
  ASSERT_EQ(result.failures.size(), 2u);
  const ConstraintFailure& deadlock = result.failures[0];
  EXPECT_EQ(deadlock.kind, Kind::kDeadlock);
  EXPECT_EQ(deadlock.position, prompt + 2);
  EXPECT_EQ(deadlock.attempt, 0);
  EXPECT_EQ(deadlock.allowed, 0);
  EXPECT_EQ(deadlock.state.num_bytes, 2);
  EXPECT_EQ(deadlock.state.readings, std::vector<std::string>{"`e`"});
  EXPECT_EQ(deadlock.state.next_bytes, "'e'");
  const ConstraintFailure& refused = result.failures[1];
  EXPECT_EQ(refused.kind, Kind::kRefused);
  EXPECT_EQ(refused.attempt, 1);
  EXPECT_EQ(refused.token, result.tokens.back());
  EXPECT_EQ(refused.position, prompt + static_cast<int64_t>(result.tokens.size()) - 1);
  EXPECT_EQ(refused.state.num_bytes, static_cast<int64_t>(result.tokens.size()) - 1);
  ASSERT_EQ(sink.failures.size(), 2u);
  EXPECT_EQ(sink.failures[1].token, refused.token);
  EXPECT_EQ(sink.failures[0].state.next_bytes, "'e'");
  EXPECT_EQ(sink.failures[0].sequence, refused.sequence);

  // All that leads on is banned.
  options_.deadlock_retries = 0;
  options_.sampler.ban = {{'a', 'b'}, {'a', 'c'}};
  result = run(Grammar::regex(table(), "a[bc]"));
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].kind, Kind::kDeadlock);
  EXPECT_EQ(result.failures[0].allowed, 2);
  EXPECT_EQ(result.failures[0].in_time, 2);
  EXPECT_TRUE(result.failures[0].message.empty());

  // The validator refuses each; at the end, two attempts.
  options_.sampler.ban = {};
  options_.validator = [](std::span<const int32_t>) { return false; };
  options_.validator_retries = 1;
  result = run(Grammar::regex(table(), "a[bc]"));
  ASSERT_EQ(result.failures.size(), 2u);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(result.failures[static_cast<size_t>(attempt)].kind, Kind::kRejected);
    EXPECT_EQ(result.failures[static_cast<size_t>(attempt)].attempt, attempt);
    EXPECT_EQ(result.failures[static_cast<size_t>(attempt)].position, prompt + 2);
  }
  options_.validator = {};
  options_.validator_retries = 0;

  // A constraint of a host's that knows no bound is cut, and says nothing of its state.
  OneThenNothing cut(vocab());
  options_.constraint = &cut;
  options_.max_new_tokens = 1;
  result = generate(*engine_, ids_, options_);
  ASSERT_EQ(result.failures.size(), 1u);
  EXPECT_EQ(result.failures[0].kind, Kind::kUnfinished);
  EXPECT_EQ(result.failures[0].position, prompt + 1);
  EXPECT_TRUE(result.failures[0].state.readings.empty());

  // One that needs too much work: what it threw, and where.
  options_.max_new_tokens = 20;
  sink.failures.clear();
  GrammarOptions small;
  small.max_items = 300;
  const Grammar ambiguous =
      Grammar::gbnf(table(), "root ::= x \"!\"\nx ::= x x | \"a\" | x x x", small);
  options_.sampler.logit_bias = {{'!', -50.0F}};
  const Error limit = error_of([&] { run(ambiguous); });
  EXPECT_EQ(limit.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(limit, {"max_items", "bytes of the answer, root (from byte 0)"}))
      << limit.what();
  ASSERT_EQ(sink.failures.size(), 1u);
  EXPECT_EQ(sink.failures[0].kind, Kind::kError);
  EXPECT_NE(sink.failures[0].message.find("max_items"), std::string::npos);
  EXPECT_GT(sink.failures[0].state.num_readings, 0);

  // A host's constraint that throws what it likes.
  class Thrower : public OneThenNothing {
   public:
    using OneThenNothing::OneThenNothing;
    bool accept(int32_t) override { throw std::runtime_error("no such luck"); }
  } thrower(vocab());
  sink.failures.clear();
  options_.constraint = &thrower;
  EXPECT_THROW(generate(*engine_, ids_, options_), std::runtime_error);
  ASSERT_EQ(sink.failures.size(), 1u);
  EXPECT_EQ(sink.failures[0].kind, Kind::kError);
  EXPECT_EQ(sink.failures[0].message, "no such luck");

  // What stands fails nowhere.
  sink.failures.clear();
  EXPECT_TRUE(run(Grammar::regex(table(), "a[bc]")).failures.empty());
  EXPECT_TRUE(sink.failures.empty());
  engine_->set_audit_sink(nullptr);
}

TEST_F(ConstraintTest, ABannedSequenceMayBeginBeforeTheAnswer) {
  const int32_t last = ids_.back(), before = ids_[ids_.size() - 2];
  options_.sampler.ban = {{before, last, 'a'}};
  EXPECT_EQ(text_of(run(Grammar::regex(table(), "[ac]"))), "c");
  const Grammar only = Grammar::regex(table(), "a");
  GenerateResult result = run(only);
  EXPECT_EQ(result.reason, StopReason::kDeadlock);
  EXPECT_EQ(result.tokens.size(), 0u);
  // In the past of a sequence that stays, too, and nowhere else.
  options_.sampler.ban = {{last, 'q', 'a'}, {before, 'q', 'a'}};
  for (const bool is_banned : {true, false}) {
    const SequenceId sequence = engine_->create_sequence();
    StepInput input;
    input.sequence = sequence;
    input.tokens = ids_;
    if (!is_banned) input.tokens = std::span(ids_).first(ids_.size() - 3);
    engine_->step({&input, 1});
    const std::span<const int32_t> past = engine_->tokens(sequence);
    EXPECT_TRUE(std::ranges::equal(past, input.tokens));
    const auto constraint = only.start();
    options_.constraint = constraint.get();
    const std::vector<int32_t> prompt = {'q'};
    result = generate(*engine_, prompt, in_sequence(sequence, options_));
    EXPECT_EQ(result.reason, is_banned ? StopReason::kDeadlock : StopReason::kComplete);
    engine_->release(sequence);
  }
}

TEST_F(ConstraintTest, TheRecordSaysWhatTheMaskTookAway) {
  std::vector<uint32_t> mask((static_cast<size_t>(vocab()) + 31) / 32);
  for (const int32_t id : {3, 40, 77, 200}) mask[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
  for (const bool inverted : {false, true}) {
    if (inverted) {
      for (int32_t id = 0; id < vocab(); ++id)
        mask[static_cast<size_t>(id) / 32] ^= 1U << (id % 32);
    }
    for (const float temperature : {0.0F, 1.0F}) {
      SamplerPipeline sampler = SamplerPipeline::from_options({.temperature = temperature});
      SlabRing ring(1 << 20, SlabRing::WhenFull::kOverwrite);
      engine_->set_audit_sink(&ring);
      const SequenceId sequence = engine_->create_sequence();
      StepInput input;
      input.sequence = sequence;
      input.tokens = ids_;
      input.sampler = temperature == 0.0F ? nullptr : &sampler;
      input.allowed_tokens = mask;
      input.constraint.mask_microseconds = 12.5F;
      input.constraint.is_limited = true;
      const uint64_t readbacks = engine_->readback_count();
      const StepOutput output = engine_->step({&input, 1})[0];
      EXPECT_EQ(engine_->readback_count(), readbacks + 1);
      ASSERT_FALSE(output.scores.empty());
      double total = 0, kept = 0;
      int32_t allowed = 0;
      size_t first = 0;
      for (size_t id = 0; id < output.scores.size(); ++id) {
        const double weight = std::exp(double{output.scores[id]});
        total += weight;
        if (mask[id / 32] >> (id % 32) & 1) {
          kept += weight;
          ++allowed;
        }
        if (output.scores[id] > output.scores[first]) first = id;
      }
      const bool first_ruled_out = (mask[first / 32] >> (first % 32) & 1) == 0;
      const std::vector<TokenRecord> records = ring.drain_records();
      const PredictionRecord& prediction = records.back().prediction;
      EXPECT_TRUE(mask[static_cast<size_t>(output.token) / 32] >> (output.token % 32) & 1);
      EXPECT_EQ(prediction.token, output.token);
      EXPECT_EQ(prediction.constraint.allowed, allowed);
      EXPECT_NEAR(prediction.constraint.removed, 1 - kept / total, 1e-5);
      EXPECT_EQ(prediction.constraint.first_ruled_out, first_ruled_out);
      EXPECT_EQ(prediction.constraint.mask_microseconds, 12.5F);
      EXPECT_TRUE(prediction.constraint.is_limited);
      EXPECT_EQ(prediction.alternatives[0].token, static_cast<int32_t>(first));
      EXPECT_EQ(output.constraint.allowed, allowed);
      engine_->set_audit_sink(nullptr);
      engine_->release(sequence);
    }
  }
}

TEST_F(ConstraintTest, WhatDoesNotFitIsRefused) {
  std::vector<std::string> bytes(8, "a");
  const auto other = Grammar::regex(TokenTable::from_bytes(bytes, {}), "a").start();
  options_.constraint = other.get();
  EXPECT_TRUE(is_one_line_with(error_of([&] { generate(*engine_, ids_, options_); }),
                               {"8 ids", std::to_string(vocab())}));
  const std::vector<uint32_t> mask(1, ~0U);
  StepInput input;
  input.sequence = engine_->create_sequence();
  input.tokens = ids_;
  input.allowed_tokens = mask;
  EXPECT_TRUE(is_one_line_with(error_of([&] { engine_->step({&input, 1}); }), {"mask of 1 words"}));
  EXPECT_EQ(engine_->length(input.sequence), 0);
  engine_->release(input.sequence);
}

}  // namespace
}  // namespace vitrine::testing
