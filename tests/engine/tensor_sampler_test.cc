// SPDX-License-Identifier: Apache-2.0
// Choices by tensor operations against the host's pipeline, on the CPU.
#include "src/backend_torch/tensor_sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "src/engine/run/executor.h"
#include "tests/sample/random_pipelines.h"

namespace vitrine::backend_torch {
namespace {

using engine::kBrokenLogits;
using engine::kChoiceFacts;
using engine::kNothingLeft;
using testing::draw_choice;
using testing::DrawnChoice;
using testing::expect_facts;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Chosen {
  int64_t id;
  std::vector<float> facts;
};

Chosen choose(const std::vector<float>& logits, std::span<const DeviceSamplerStep> steps) {
  const at::Tensor row = at::tensor(logits);
  const TensorChoice choice = choose_with_tensors(row, steps);
  const float* facts = choice.facts.const_data_ptr<float>();
  return {choice.id.item<int64_t>(), {facts, facts + kChoiceFacts}};
}

TEST(TensorSampler, ChoosesAsTheHostDoes) {
  std::mt19937 rng(5);
  DeviceSamplerSteps steps;
  int compared = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    const size_t vocabulary = 1 + rng() % 130;
    SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(vocabulary) + " logits");
    DrawnChoice drawn = draw_choice(rng, vocabulary);
    ASSERT_TRUE(drawn.device.has_device_form());
    DeviceForm::describe(drawn.device, drawn.context(), static_cast<int64_t>(vocabulary), steps);
    const Chosen chosen = choose(drawn.logits, steps.list());
    const std::optional<int32_t> expected = drawn.host_choice();
    if (!expected) {
      ++refused;
      EXPECT_EQ(chosen.id, kNothingLeft);
      continue;
    }
    ++compared;
    ASSERT_EQ(chosen.id, *expected);
    ASSERT_NO_FATAL_FAILURE(expect_facts(drawn, chosen.facts));
  }
  EXPECT_GT(compared, 2500);
  EXPECT_GT(refused, 10);
}

TEST(TensorSampler, LogitsThatAreNoNumbersGiveNoToken) {
  DeviceSamplerSteps steps;
  for (const SamplerOptions& options : {SamplerOptions{}, SamplerOptions{.temperature = 0},
                                        SamplerOptions{.top_k = 2, .top_p = .5F}}) {
    SamplerPipeline pipeline = SamplerPipeline::from_options(options);
    DeviceForm::describe(pipeline, {}, 4, steps);
    EXPECT_EQ(choose({1, 2, std::nanf(""), 0}, steps.list()).id, kBrokenLogits);
    EXPECT_EQ(choose({1, kInfinity, 0, 0}, steps.list()).id, kBrokenLogits);
    EXPECT_EQ(choose({-kInfinity, -kInfinity, -kInfinity, -kInfinity}, steps.list()).id,
              kNothingLeft);
    EXPECT_EQ(choose({-kInfinity, -kInfinity, 3, -kInfinity}, steps.list()).id, 2);
  }
}

TEST(TensorSampler, ForcedPositionsAreRememberedAsByTheHost) {
  const SamplerOptions options{.temperature = 0, .repetition_penalty = 5};
  SamplerPipeline pipeline = SamplerPipeline::from_options(options);
  DeviceSamplerSteps steps;
  const std::vector<uint32_t> mask = {2};
  pipeline.set_allowed_tokens(mask, /*is_forced=*/true);
  DeviceForm::describe(pipeline, {}, 3, steps);
  EXPECT_EQ(choose({9, 1, 9}, steps.list()).id, 1);
  const std::vector<int32_t> history = {1};
  DeviceForm::describe(pipeline, {.position = 1, .history = history}, 3, steps);
  EXPECT_EQ(choose({1, 2, 1}, steps.list()).id, 1);  // not penalised: the constraint wrote it
  SamplerPipeline unforced = SamplerPipeline::from_options(options);
  DeviceForm::describe(unforced, {.position = 1, .history = history}, 3, steps);
  EXPECT_EQ(choose({1, 2, 1}, steps.list()).id, 0);
}

TEST(TensorSampler, HostStagesHaveNoDeviceForm) {
  SamplerPipeline mirostat = SamplerPipeline::from_options({.mirostat = 2});
  DeviceSamplerSteps steps;
  EXPECT_FALSE(mirostat.has_device_form());
  EXPECT_THROW(DeviceForm::describe(mirostat, {}, 3, steps), Error);
}

}  // namespace
}  // namespace vitrine::backend_torch
