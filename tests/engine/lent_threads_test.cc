// SPDX-License-Identifier: Apache-2.0
// An engine's threads between its steps: who may have them, and for how long.
#include <gtest/gtest.h>

#include <thread>

#include "core/piece_work.h"
#include "engine/occupant.h"
#include "tests/engine/engine_fixture.h"
#include "vitrine/generate.h"

namespace vitrine::testing {
namespace {

using engine::Occupant;
using engine::Occupied;

bool is_refused(Occupant& occupant) {
  bool refused = false;
  std::thread([&] {
    try {
      const Occupied inside(occupant);
    } catch (const Error& error) {
      refused = error.kind() == ErrorKind::kInvalidArgument;
    }
  }).join();
  return refused;
}

/// Goes inside for a scope, where nobody is.
class Briefly {
 public:
  explicit Briefly(Occupant& occupant)
      : occupant_(occupant), is_inside_(occupant.enter_if_free()) {}
  ~Briefly() {
    if (is_inside_) occupant_.leave_soon();
  }
  Briefly(const Briefly&) = delete;
  Briefly& operator=(const Briefly&) = delete;
  explicit operator bool() const { return is_inside_; }

 private:
  Occupant& occupant_;
  bool is_inside_;
};

TEST(EnterIfFree, StaysOutWhereSomebodyIsInside) {
  Occupant occupant("a test");
  {
    const Occupied step(occupant);
    EXPECT_FALSE(Briefly(occupant));
    bool entered = true;
    std::thread([&] { entered = static_cast<bool>(Briefly(occupant)); }).join();
    EXPECT_FALSE(entered);
    EXPECT_TRUE(is_refused(occupant));
  }
  EXPECT_TRUE(Briefly(occupant));
  EXPECT_FALSE(is_refused(occupant));
}

TEST(EnterIfFree, KeepsItsOwnThreadFromAStep) {
  Occupant occupant("a test");
  const Briefly briefly(occupant);
  ASSERT_TRUE(briefly);
  EXPECT_FALSE(Briefly(occupant));
  EXPECT_THROW(Occupied inside(occupant), Error);
}

// Unsynchronised but for the occupant: a race shows as a lost count, or under ThreadSanitizer.
TEST(EnterIfFree, OthersWaitForIt) {
  constexpr int kRounds = 20'000;
  Occupant occupant("a test");
  int64_t count = 0, lent = 0;
  std::thread steps([&] {
    for (int i = 0; i < kRounds; ++i) {
      const Occupied inside(occupant);  // throws nothing: the other is there for a moment alone
      ++count;
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const Briefly briefly(occupant);
    if (!briefly) continue;
    ++count;
    ++lent;
  }
  steps.join();
  EXPECT_EQ(count, kRounds + lent);
}

/// Guesses nothing; sees what it has of threads.
class Borrower final : public Drafter, public core::ThreadBorrower {
 public:
  std::string_view name() const override { return "borrower"; }
  DraftTextId start(const DraftText&) override { return 1; }
  DraftTextId fork(DraftTextId) override { return 1; }
  void commit(DraftTextId, std::span<const int32_t>) override { EXPECT_EQ(threads_, nullptr); }
  void truncate(DraftTextId, int64_t) override {}
  void release(DraftTextId, bool) override { EXPECT_EQ(threads_, nullptr); }
  void lend(core::PieceThreads* threads) override { threads_ = threads; }
  void propose(std::span<DraftProposal> proposals) override {
    for (DraftProposal& proposal : proposals) proposal.count = 0;
    struct Work final : core::PieceWork {
      void run_piece(int64_t piece) override { done[static_cast<size_t>(piece)] += 1; }
      std::array<int, 9> done = {};
    } work;
    if (threads_ == nullptr) return;
    threads_->run(work, std::ssize(work.done));
    for (const int times : work.done) EXPECT_EQ(times, 1);
    numbers.push_back(threads_->threads());
  }

  std::vector<int> numbers;  // of threads, by call

 private:
  core::PieceThreads* threads_ = nullptr;
};

TEST(LentThreads, AreThoseOfTheEngineWhileItIsAsked) {
  for (const int threads : {1, 2, 3}) {
    EngineOptions options = test_options();
    options.threads = threads;
    const auto engine = Engine::load(oracle_folder("llama"), options);
    const std::vector<int32_t> prompt = prompt_ids(9, engine->summary().vocab_size);
    Borrower borrower;
    GenerateOptions asked;
    asked.max_new_tokens = 12;
    asked.ignore_end_of_text = true;
    asked.speculation.drafter = &borrower;
    EXPECT_EQ(generate(*engine, prompt, asked).tokens.size(), 12U);
    EXPECT_GT(borrower.numbers.size(), 5U);
    Generation one(*engine, prompt, asked), other(*engine, prompt, asked);
    const size_t before = borrower.numbers.size();
    for (Generation* each : {&one, &other}) {
      while (each->result().tokens.empty()) {
        const StepInput input = each->next_input();
        each->accept(engine->step({&input, 1}));
      }
    }
    Generation* const both[] = {&one, &other};
    Generation::draft(both);
    EXPECT_EQ(borrower.numbers.size(), before + 1);  // for both at once
    for (const int number : borrower.numbers) EXPECT_EQ(number, threads);
  }
}

// What a host puts around an engine keeps what the engine lends and can do.
TEST(LentThreads, GoThroughAHostsStepper) {
  class CountingStepper final : public ForwardingStepper {
   public:
    using ForwardingStepper::ForwardingStepper;
    std::span<const StepOutput> step(std::span<const StepInput> inputs) override {
      ++steps;
      return ForwardingStepper::step(inputs);
    }
    int steps = 0;
  };
  EngineOptions options = test_options();
  options.threads = 2;
  const auto engine = Engine::load(oracle_folder("llama"), options);
  CountingStepper counted(*engine), around(static_cast<Stepper&>(counted));
  Borrower borrower;
  GenerateOptions asked;
  asked.max_new_tokens = 12;
  asked.ignore_end_of_text = true;
  asked.speculation.drafter = &borrower;
  const std::vector<int32_t> prompt = prompt_ids(9, engine->summary().vocab_size);
  EXPECT_EQ(generate(around, prompt, asked).tokens, generate(*engine, prompt, asked).tokens);
  EXPECT_EQ(counted.steps, 12);
  EXPECT_EQ(around.steps, 12);
  for (const int number : borrower.numbers) EXPECT_EQ(number, 2);
  EXPECT_EQ(around.engine(), engine.get());
  EXPECT_TRUE(around.traits().runs_trees);
  EXPECT_FALSE(around.traits().gives_logprobs);
}

}  // namespace
}  // namespace vitrine::testing
