// SPDX-License-Identifier: Apache-2.0
// Experts that are read when a step needs them, where the step is ended before they are.
#include <array>

#include "checkpoint/model_config.h"
#include "model/weights.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

TEST(FileExpertCache, WhatWasNotReadIsNotThere) {
  const Checkpoint checkpoint = Checkpoint::open(oracle_folder("qwen3_moe"));
  const ModelConfig config = parse_model_config(checkpoint);
  model::CheckpointWeights weights(ops::select_cpu_kernels(), checkpoint, /*read=*/true,
                                   uint64_t{1} << 20);
  ops::ExpertCache& cache = *weights.experts();
  for (int i = 0; i < 3; ++i) {
    const std::string of = "model.layers.0.mlp.experts." + std::to_string(i);
    EXPECT_EQ(cache.add({of + ".gate_proj", of + ".up_proj", of + ".down_proj", config.hidden_size,
                         config.moe_intermediate_size}),
              i);
  }
  weights.load(1, 3);
  const std::array<int32_t, 3> experts = {0, 1, 2};
  ASSERT_EQ(cache.select(experts.data(), 3), 3);
  cache.read(0);
  cache.read(2);  // here the step ends, and nobody says that it is finished
  EXPECT_EQ(cache.select(experts.data(), 3), 1);
  cache.read(0);
  cache.finish();
  EXPECT_EQ(cache.select(experts.data(), 3), 0);
  EXPECT_EQ(weights.expert_cache().misses, 4u);
}

}  // namespace
}  // namespace vitrine::testing
