// SPDX-License-Identifier: Apache-2.0
// Experts that are read when a step needs them, where the step is ended before they are.
#include <vector>

#include "checkpoint/model_config.h"
#include "model/weights.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

/// The first layer's experts of a small model in a cache with room for `slots` of them.
class SmallCache {
 public:
  explicit SmallCache(int num_experts, uint64_t slots, bool reads_ahead = true)
      : weights_(ops::select_cpu_kernels(), checkpoint_, /*read=*/true, slots * slot_bytes(),
                 /*mapped=*/false, reads_ahead) {
    add_to(weights_, num_experts);
    weights_.load(1, 1);
  }
  ops::ExpertCache& cache() { return *weights_.experts(); }
  int32_t select(std::vector<int32_t> experts) {
    return cache().select(experts.data(), static_cast<int32_t>(experts.size()));
  }
  void prefetch(std::vector<int32_t> experts) {
    cache().prefetch(experts.data(), static_cast<int32_t>(experts.size()));
  }
  model::CacheCounts counts() const { return weights_.expert_cache(); }

 private:
  void add_to(model::CheckpointWeights& weights, int num_experts) {
    for (int i = 0; i < num_experts; ++i) {
      const std::string of = "model.layers.0.mlp.experts." + std::to_string(i);
      weights.experts()->add({of + ".gate_proj", of + ".up_proj", of + ".down_proj",
                              config_.hidden_size, config_.moe_intermediate_size});
    }
  }
  uint64_t slot_bytes() {
    model::CheckpointWeights weights(ops::select_cpu_kernels(), checkpoint_, /*read=*/true,
                                     uint64_t{1} << 20);
    add_to(weights, 1);
    weights.load(1, 1);
    return weights.expert_cache().slot_bytes;
  }

  Checkpoint checkpoint_ = Checkpoint::open(oracle_folder("qwen3_moe"));
  ModelConfig config_ = parse_model_config(checkpoint_);
  model::CheckpointWeights weights_;
};

TEST(FileExpertCache, AStepThatEndsBeforeItsExpertsAreRead) {
  SmallCache small(3, 3);
  EXPECT_EQ(small.select({0, 1, 2}), 3);
  small.cache().wait(0);
  small.cache().wait(2);
  EXPECT_FALSE(small.cache().is_here(1));
  // Here the step ends, and nobody says that it is finished.
  EXPECT_EQ(small.select({0, 1, 2}), 1);
  small.cache().wait(1);
  small.cache().finish();
  for (const int expert : {0, 1, 2}) EXPECT_TRUE(small.cache().is_here(expert));
  EXPECT_EQ(small.select({0, 1, 2}), 0);
  EXPECT_EQ(small.counts().misses, 4u);
}

TEST(FileExpertCache, AGuessTakesNoPlace) {
  SmallCache small(4, 2);
  EXPECT_EQ(small.select({0, 1}), 2);
  EXPECT_EQ(small.cache().num_asked(), 2);
  for (const int expert : {0, 1}) small.cache().wait(expert);
  small.prefetch({3, 0, 3});  // one is not here
  EXPECT_EQ(small.cache().num_asked(), 3);
  for (int32_t i = 0; i < small.cache().num_asked(); ++i) small.cache().ask(i);
  EXPECT_EQ(small.counts().guesses, 2u);
  EXPECT_EQ(small.counts().read_ahead, 1u);
  for (const int expert : {0, 1}) EXPECT_TRUE(small.cache().is_here(expert));
  EXPECT_EQ(small.select({3, 1}), 1);
  EXPECT_EQ(small.cache().num_asked(), 0);  // one alone is just read
  small.cache().wait(3);
  EXPECT_TRUE(small.cache().is_here(3));
  EXPECT_TRUE(small.cache().is_here(1));
  EXPECT_FALSE(small.cache().is_here(0));
  EXPECT_EQ(small.counts().right_guesses, 1u);
  EXPECT_EQ(small.counts().read_ahead_used, 1u);
}

TEST(FileExpertCache, GuessesAreCountedWhereNothingIsReadAhead) {
  SmallCache small(3, 3, /*reads_ahead=*/false);
  small.select({0});
  small.cache().wait(0);
  small.prefetch({1, 2});
  EXPECT_EQ(small.cache().num_asked(), 0);
  EXPECT_EQ(small.select({1}), 1);
  small.cache().wait(1);
  EXPECT_EQ(small.counts().guesses, 2u);
  EXPECT_EQ(small.counts().right_guesses, 1u);
  EXPECT_EQ(small.counts().read_ahead, 0u);
  EXPECT_EQ(small.counts().misses, 2u);
}

/// Layers that use, guess and give up in every order: whatever is waited for is there.
TEST(FileExpertCache, ManyLayersInATightCache) {
  SmallCache small(8, 3);
  uint32_t state = 1;
  const auto draw = [&state] {
    return static_cast<int32_t>((state = state * 1664525 + 1013904223) >> 29);
  };
  for (int layer = 0; layer < 3000; ++layer) {
    const int32_t first = draw(), second = (first + 1 + draw() % 7) % 8;
    small.select({first, second});
    small.prefetch({draw(), draw()});
    for (int32_t i = 0; i < small.cache().num_asked(); ++i) small.cache().ask(i);
    if (layer % 5 == 0) continue;  // the step ends
    for (const int32_t expert : {first, second}) {
      small.cache().wait(expert);
      ASSERT_TRUE(small.cache().is_here(expert)) << layer;
    }
    small.cache().finish();
  }
  EXPECT_GE(small.counts().read_ahead, small.counts().read_ahead_used);
  EXPECT_GT(small.counts().read_ahead_used, 0u);
}

}  // namespace
}  // namespace vitrine::testing
