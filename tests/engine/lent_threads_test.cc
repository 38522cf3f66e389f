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
using engine::OccupiedIfFree;

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

TEST(OccupiedIfFree, StaysOutWhereSomebodyIsInside) {
  Occupant occupant("a test");
  {
    const Occupied step(occupant);
    EXPECT_FALSE(OccupiedIfFree(&occupant));
    bool entered = true;
    std::thread([&] { entered = static_cast<bool>(OccupiedIfFree(&occupant)); }).join();
    EXPECT_FALSE(entered);
    EXPECT_TRUE(is_refused(occupant));
  }
  EXPECT_TRUE(OccupiedIfFree(&occupant));
  EXPECT_FALSE(OccupiedIfFree(nullptr));
  EXPECT_FALSE(is_refused(occupant));
}

TEST(OccupiedIfFree, KeepsItsOwnThreadFromAStep) {
  Occupant occupant("a test");
  const OccupiedIfFree briefly(&occupant);
  ASSERT_TRUE(briefly);
  EXPECT_FALSE(OccupiedIfFree(&occupant));
  EXPECT_THROW(Occupied inside(occupant), Error);
}

// Unsynchronised but for the occupant: a race shows as a lost count, or under ThreadSanitizer.
TEST(OccupiedIfFree, OthersWaitForIt) {
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
    const OccupiedIfFree briefly(&occupant);
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

}  // namespace
}  // namespace vitrine::testing
