// SPDX-License-Identifier: Apache-2.0
// Random sampler pipelines, chosen by the kernel and by the host.
#include <random>

#include "kernels/cuda/sample/sample.h"
#include "src/backend_cuda/sampler_steps.h"
#include "tests/cuda/cuda_test_util.h"
#include "tests/sample/random_pipelines.h"

namespace vitrine::kernels::cuda::testing {
namespace {

using vitrine::testing::draw_choice;
using vitrine::testing::DrawnChoice;
using vitrine::testing::expect_facts;

struct Chosen {
  int32_t id = 0;
  std::vector<float> facts;
};

/// One row, whose logits have to be what they were afterwards.
Chosen choose(const std::vector<float>& logits, std::span<const DeviceSamplerStep> steps) {
  const auto vocab = static_cast<int64_t>(logits.size());
  DeviceArray<float> row(logits);
  DeviceArray<SampleStep> packed(kMaxSampleSteps);
  DeviceArray<int32_t> words(static_cast<size_t>(backend_cuda::most_sampler_words(vocab)) + 5);
  backend_cuda::pack_steps(steps, 5, packed.data(), words.data());
  DeviceArray<int32_t> id(1);
  DeviceArray<float> facts(kSampleFacts);
  Sampling sampling;
  sampling.vocab = vocab;
  sampling.logits = row.data();
  sampling.steps = packed.data();
  sampling.words = words.data();
  sampling.chosen_ids = id.data();
  sampling.facts = facts.data();
  EXPECT_TRUE(ok(sample_rows(sampling, 1, nullptr)));
  EXPECT_TRUE(same_bits(row.to_vector(), logits));
  return {id[0], facts.to_vector()};
}

TEST(CudaSamplePipeline, ChoosesAsTheHostDoes) {
  std::mt19937 rng(5);
  DeviceSamplerSteps steps;
  int compared = 0, refused = 0, untaken = 0;
  for (int round = 0; round < 400; ++round) {
    // Short rows, and some of which more is left than shared memory holds.
    const size_t vocabulary = round % 10 == 0 ? 2000 + rng() % 3000 : 1 + rng() % 130;
    SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(vocabulary) + " logits");
    DrawnChoice drawn = draw_choice(rng, vocabulary);
    DeviceForm::describe(drawn.device, drawn.context(), static_cast<int64_t>(vocabulary), steps);
    if (!backend_cuda::kernel_takes(steps.list())) {
      ++untaken;
      continue;
    }
    emulator::set_seed(rng());
    const Chosen chosen = choose(drawn.logits, steps.list());
    const std::optional<int32_t> expected = drawn.host_choice();
    if (!expected) {
      ++refused;
      EXPECT_EQ(chosen.id, kEmptyRow);
      continue;
    }
    ++compared;
    ASSERT_EQ(chosen.id, *expected);
    ASSERT_NO_FATAL_FAILURE(expect_facts(drawn, chosen.facts));
    if (!drawn.is_masked) {
      ASSERT_EQ(chosen.facts[2], 0);
    }
  }
  EXPECT_GT(compared, 350);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(untaken, 0) << "the default order has edits first";
}

TEST(CudaSamplePipeline, WhatTheKernelDoesNotTake) {
  using Kind = DeviceSamplerStep::Kind;
  DeviceSamplerSteps steps;
  EXPECT_FALSE(backend_cuda::kernel_takes(steps.list()));
  steps.add(Kind::kTopK, 3);
  EXPECT_FALSE(backend_cuda::kernel_takes(steps.list())) << "nobody chooses";
  steps.add(Kind::kGreedy);
  EXPECT_TRUE(backend_cuda::kernel_takes(steps.list()));
  for (const Kind late : {Kind::kAdd, Kind::kPenalise, Kind::kMask}) {
    steps.clear();
    steps.add(Kind::kDivide, 2);
    steps.add(late, 2);
    steps.add(Kind::kGreedy);
    EXPECT_FALSE(backend_cuda::kernel_takes(steps.list())) << "an edit of what was divided";
  }
  steps.clear();
  steps.add(Kind::kAdd).ids.resize(backend_cuda::kMaxEditedIds + 1);
  steps.add(Kind::kGreedy);
  EXPECT_FALSE(backend_cuda::kernel_takes(steps.list()));
  steps.clear();
  for (int i = 0; i < kMaxSampleSteps; ++i) steps.add(Kind::kDivide, 1);
  steps.add(Kind::kGreedy);
  EXPECT_FALSE(backend_cuda::kernel_takes(steps.list()));
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
