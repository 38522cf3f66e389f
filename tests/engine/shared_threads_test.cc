// SPDX-License-Identifier: Apache-2.0
// Engines that run by turns and share their threads.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/engine/federation_fixture.h"
#include "vitrine/drafters.h"
#include "vitrine/generate.h"

namespace vitrine::testing {
namespace {

/// Threads of this process, by the system's count.
int64_t num_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(SharedThreads, RunTwoModelsWithTheBitsOfTheirOwn) {
  const EngineOptions own = test_options(3);
  const auto alone = Engine::load(oracle_folder("llama"), own);
  const std::vector<int32_t> ids = prompt_ids(40, alone->summary().vocab_size);
  const Rows expected = score(*alone, ids);
  const int64_t before = num_threads();
  const auto first = Engine::load(oracle_folder("qwen3_moe"), own);
  EXPECT_EQ(num_threads(), before + 2);
  const Rows expected_first = score(*first, ids);
  EngineOptions shared = test_options(1);  // as many as there are
  shared.shared_threads = first->threads();
  auto second = Engine::load(oracle_folder("llama"), shared);
  EXPECT_EQ(num_threads(), before + 2);
  EXPECT_EQ(second->summary().threads, 3);
  EXPECT_EQ(second->threads(), first->threads());
  EXPECT_TRUE(same_bits(expected, score(*second, ids), ids.size()));
  EXPECT_TRUE(same_bits(expected_first, score(*first, ids), ids.size()));
  second.reset();
  EXPECT_TRUE(same_bits(expected_first, score(*first, ids), ids.size()));
}

TEST(SharedThreads, OutliveWhoMadeThem) {
  EngineOptions options = test_options(2);
  auto first = Engine::load(oracle_folder("qwen3_moe"), options);
  options.shared_threads = first->threads();
  const auto second = Engine::load(oracle_folder("llama"), options);
  const std::vector<int32_t> ids = prompt_ids(20, second->summary().vocab_size);
  const Rows expected = score(*second, ids);
  first.reset();
  options.shared_threads.reset();
  EXPECT_TRUE(same_bits(expected, score(*second, ids), ids.size()));
}

// What would disturb a step is refused, as one engine refuses it.
TEST(SharedThreads, AreUsedByOneStepAtATime) {
  EngineOptions options = test_options(2);
  const auto first = Engine::load(oracle_folder("qwen3_moe"), options);
  options.shared_threads = first->threads();
  const auto second = Engine::load(oracle_folder("llama"), options);
  struct Intruder final : SamplerStage {
    std::string_view name() const override { return "intruder"; }
    uint32_t stage_id() const override { return kFirstHostStageId; }
    void apply(Candidates&, const SampleContext&) override {
      const std::vector<int32_t> ids = {1, 2};
      const StepInput input{sequence, ids};
      EXPECT_EQ(error_of([&] { other->step({&input, 1}); }).kind(), ErrorKind::kInvalidArgument);
      was_there = true;
    }
    Engine* other = nullptr;
    SequenceId sequence = 0;
    bool was_there = false;
  };
  auto intruder = std::make_unique<Intruder>();
  Intruder& watched = *intruder;
  watched.other = second.get();
  watched.sequence = second->create_sequence();
  SamplerPipeline pipeline;
  pipeline.add(std::move(intruder));
  pipeline.add(make_greedy_stage());
  const std::vector<int32_t> ids = {3, 4, 5};
  StepInput input{first->create_sequence(), ids};
  input.sampler = &pipeline;
  first->step({&input, 1});
  EXPECT_TRUE(watched.was_there);
}

TEST_F(FederationTest, SpecialistsShareTheirThreads) {
  const int64_t before = num_threads();
  const auto federation = Federation::load(separate_, test_options(3));
  ASSERT_EQ(federation->engines().size(), 2U);
  EXPECT_EQ(num_threads(), before + 2);
  EXPECT_EQ(federation->engines()[0]->threads(), federation->engines()[1]->threads());
  EngineOptions given = test_options(3);
  given.shared_threads = federation->engines()[0]->threads();
  EXPECT_EQ(error_of([&] { Federation::load(separate_, given); }).kind(), ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace vitrine::testing
