// Choices by tensor operations against the host's pipeline, on the CPU.
#include "src/engine/tensor_sampler.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "src/engine/executor.h"
#include "tests/sample/random_pipelines.h"

namespace vitrine::engine {
namespace {

using testing::draw_logits;
using testing::draw_options;

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
    const std::vector<float> logits = draw_logits(rng, vocabulary);
    const SamplerOptions options = draw_options(rng, vocabulary);
    SCOPED_TRACE("round " + std::to_string(round) + ", " + std::to_string(vocabulary) + " logits");
    SamplerPipeline host = SamplerPipeline::from_options(options);
    SamplerPipeline device = host.fork();
    std::vector<int32_t> history(rng() % 40);
    for (int32_t& id : history) id = static_cast<int32_t>(rng() % std::min<size_t>(vocabulary, 6));
    std::vector<uint32_t> mask((vocabulary + 31) / 32);
    for (uint32_t& word : mask) word = static_cast<uint32_t>(rng() | rng());
    const bool is_masked = rng() % 2 == 0;
    const SampleContext context{rng(), static_cast<int64_t>(history.size()), 0, history};
    if (is_masked) {
      const bool is_forced = rng() % 8 == 0;
      host.set_allowed_tokens(mask, is_forced);
      device.set_allowed_tokens(mask, is_forced);
    }
    ASSERT_TRUE(device.has_device_form());
    device.device_steps(context, static_cast<int64_t>(vocabulary), steps);
    const Chosen chosen = choose(logits, steps.list());
    int32_t expected = 0;
    try {
      expected = host.sample(logits, context);
    } catch (const Error&) {
      ++refused;
      EXPECT_EQ(chosen.id, kNothingLeft);
      continue;
    }
    ++compared;
    ASSERT_EQ(chosen.id, expected);
    // Where rounding decides whether it was certain, the host calls that a choice of one.
    if (std::abs(host.decision().probability - 1) > 1e-6F || chosen.facts[0] > 1) {
      ASSERT_EQ(static_cast<int32_t>(chosen.facts[0]), host.decision().candidates);
    }
    ASSERT_NEAR(chosen.facts[1], host.decision().probability, 1e-6F);
    if (!is_masked) continue;
    double total = 0, removed = 0;
    const double largest = *std::max_element(logits.begin(), logits.end());
    size_t best = 0;
    for (size_t id = 0; id < vocabulary; ++id) {
      const double weight = std::exp(logits[id] - largest);
      total += weight;
      if ((mask[id / 32] >> (id % 32) & 1) == 0) removed += weight;
      if (logits[id] > logits[best]) best = id;
    }
    ASSERT_NEAR(chosen.facts[2], removed / total, 1e-6);
    ASSERT_EQ(chosen.facts[3] != 0, (mask[best / 32] >> (best % 32) & 1) == 0);
  }
  EXPECT_GT(compared, 2500);
  EXPECT_GT(refused, 10);
}

TEST(TensorSampler, LogitsThatAreNoNumbersGiveNoToken) {
  DeviceSamplerSteps steps;
  for (const SamplerOptions& options : {SamplerOptions{}, SamplerOptions{.temperature = 0},
                                        SamplerOptions{.top_k = 2, .top_p = .5F}}) {
    SamplerPipeline pipeline = SamplerPipeline::from_options(options);
    pipeline.device_steps({}, 4, steps);
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
  pipeline.device_steps({}, 3, steps);
  EXPECT_EQ(choose({9, 1, 9}, steps.list()).id, 1);
  const std::vector<int32_t> history = {1};
  pipeline.device_steps({.position = 1, .history = history}, 3, steps);
  EXPECT_EQ(choose({1, 2, 1}, steps.list()).id, 1);  // not penalised: the constraint wrote it
  SamplerPipeline unforced = SamplerPipeline::from_options(options);
  unforced.device_steps({.position = 1, .history = history}, 3, steps);
  EXPECT_EQ(choose({1, 2, 1}, steps.list()).id, 0);
}

TEST(TensorSampler, HostStagesHaveNoDeviceForm) {
  SamplerPipeline mirostat = SamplerPipeline::from_options({.mirostat = 2});
  DeviceSamplerSteps steps;
  EXPECT_FALSE(mirostat.has_device_form());
  EXPECT_THROW(mirostat.device_steps({}, 3, steps), Error);
}

}  // namespace
}  // namespace vitrine::engine
