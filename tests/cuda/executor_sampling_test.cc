// SPDX-License-Identifier: Apache-2.0
// Choices in the step's graph, on the emulator or a GPU, against the host's sampler over the CPU's
// logits.
#include "engine/run/device_joint.h"
#include "kernels/cuda/sample/sample.h"
#include "tests/cuda/executor_fixture.h"

namespace vitrine::testing {
namespace {

using kernels::cuda::emulator::Traffic;

/// What the host's sampler makes of a row.
struct HostChoice {
  int32_t id;
  SampleDecision decision;
};

HostChoice sample(const SamplerOptions& options, const std::vector<float>& logits,
                  const SampleContext& context, std::span<const uint32_t> mask) {
  SamplerPipeline pipeline = SamplerPipeline::from_options(options);
  if (!mask.empty()) pipeline.set_allowed_tokens(mask);
  return {pipeline.sample(logits, context), pipeline.decision()};
}

std::vector<SamplerOptions> sampler_options() {
  std::vector<SamplerOptions> all(4);
  all[0] = {.temperature = 0.9F, .top_k = 30, .top_p = 0.9F, .min_p = 0.01F};
  all[0].repetition_penalty = 1.3F;
  all[1] = {.temperature = 1.7F, .typical_p = 0.8F};
  all[1].logit_bias = {{3, 4.0F}, {17, -INFINITY}};
  all[1].frequency_penalty = 0.3F;
  all[2] = {.temperature = 1.2F, .top_n_sigma = 1.5F};
  all[2].dynamic_temperature = 0.5F;
  all[3] = {.temperature = 0.0F};
  all[3].presence_penalty = 9.0F;
  return all;
}

TEST(CudaExecutorSampling, ChoosesAsTheHostDoes) {
  const ModelUnderTest model(oracle_folder("qwen3_moe"));
  const auto vocab = static_cast<size_t>(model.config.vocab_size);
  Traffic traffic;
  const auto cpu = engine::make_fused_executor(model.inputs());
  const auto device = make_on_device(model, traffic);
  StepDriver expected(model, *cpu), found(model, *device);
  const auto row_words = static_cast<size_t>(model.layout.row_words);
  uint64_t seed = 0;
  for (const SamplerOptions& options : sampler_options()) {
    for (const bool is_masked : {false, true}) {
      std::vector<uint32_t> mask(is_masked ? (vocab + 31) / 32 : 0);
      for (uint32_t& word : mask) word = 0xa5f03c69U;
      const std::vector<int32_t> history = {3, 1, 4, 1, 5};
      SampleContext context{++seed, 5, 0, history};
      DeviceSamplerSteps steps;
      SamplerPipeline pipeline = SamplerPipeline::from_options(options);
      if (is_masked) pipeline.set_allowed_tokens(mask);
      DeviceForm::describe(pipeline, context, static_cast<int64_t>(vocab), steps);
      const DeviceSamplerSteps* row_steps[] = {nullptr, &steps};
      ASSERT_TRUE(device->keep_choosable(row_steps));
      ASSERT_EQ(row_steps[1], &steps);
      // A greedy row and rows with targets beside the sampled one, which is filled up to.
      const std::vector<Part> parts = {{0, {9}}, {1, {3, 1, 4}, true, &steps}, {2, {5}}};
      std::vector<Part> plain = parts;
      plain[1].steps = nullptr;
      const StepResult cpu_step = expected.step(plain), step = found.step(parts);
      EXPECT_TRUE(same_floats(cpu_step.logits, step.logits)) << "logits are as they were";
      const std::vector<float> logits = cpu_step.logits_of(3);
      const HostChoice host = sample(options, logits, context, mask);
      EXPECT_EQ(step.words[3], host.id);
      for (const size_t row : {0U, 1U, 2U, 4U}) {
        EXPECT_EQ(step.words[row], cpu_step.words[row]) << "row " << row;
      }
      const float* facts = step.choice_facts.data() + 3 * engine::kChoiceFacts;
      EXPECT_EQ(static_cast<int32_t>(facts[0]), host.decision.candidates);
      EXPECT_NEAR(facts[1], host.decision.probability, 1e-6F);
      const size_t record = step.rows + 3 * row_words;
      for (size_t word = 0; word < row_words; ++word) {
        const auto field = static_cast<int32_t>(word);
        if (field == model.layout.chosen_logit) {
          float recorded = 0;
          std::memcpy(&recorded, &step.words[record + word], sizeof(recorded));
          EXPECT_EQ(recorded, logits[static_cast<size_t>(host.id)]);
        } else if (field == model.layout.logits_digest || field == model.layout.top_ids) {
          EXPECT_EQ(step.words[record + word], cpu_step.words[record + word]);
        }
      }
    }
  }
}

TEST(CudaExecutorSampling, AStepReadsNoLogitsBackAndRunsTheSameKernelsWithAuditOnAndOff) {
  const ModelUnderTest model(oracle_folder("qwen3_moe"));
  const auto vocab = static_cast<int64_t>(model.config.vocab_size);
  Traffic traffic;
  backend_cuda::FusedModel* fused = nullptr;
  const auto device = make_on_device(model, traffic, &fused);
  StepDriver driver(model, *device);
  DeviceSamplerSteps steps;
  SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = 0.8F, .top_p = 0.9F});
  DeviceForm::describe(pipeline, {.seed = 3}, vocab, steps);
  driver.step({{0, {3}}}, AuditMode::kNone, false);
  const int64_t greedy_kernels = fused->kernels_per_step();
  driver.step({{0, {3}, true, &steps}}, AuditMode::kNone, false);
  const int64_t kernels = fused->kernels_per_step();
  EXPECT_EQ(kernels, greedy_kernels + 1);
  const Traffic before = traffic;
  driver.step({{0, {3}, true, &steps}}, AuditMode::kNone, false);
  EXPECT_LE(traffic.bytes_to_host - before.bytes_to_host, (1 + engine::kChoiceFacts) * 4);
  driver.step({{0, {3}, true, &steps}}, AuditMode::kDeferred, false);
  EXPECT_EQ(fused->kernels_per_step(), kernels);
  EXPECT_EQ(traffic.to_device - before.to_device, 2);
  EXPECT_EQ(traffic.to_host - before.to_host, 2);
  EXPECT_EQ(traffic.captures, before.captures);
  EXPECT_EQ(traffic.allocated, before.allocated);
  EXPECT_LT(traffic.bytes_to_host - before.bytes_to_host, static_cast<size_t>(vocab) * 4);
}

TEST(CudaExecutorSampling, RowsWithoutRoomAreLeftToTheHost) {
  ModelUnderTest model(oracle_folder("llama"));
  constexpr int kRoom = 4 + engine::kDraftRows;  // rows of 4 sequences and of their guesses
  model.options.max_step_tokens = model.options.max_logit_rows = kRoom + 4;
  Traffic traffic;
  const auto device = make_on_device(model, traffic);
  DeviceSamplerSteps full, small, late;
  full.add(DeviceSamplerStep::Kind::kAdd).ids.resize(4096);
  small.add(DeviceSamplerStep::Kind::kAdd).ids.resize(1);
  late.add(DeviceSamplerStep::Kind::kDivide, 2);
  late.add(DeviceSamplerStep::Kind::kPenalise, 2);
  for (DeviceSamplerSteps* steps : {&full, &small, &late}) {
    steps->add(DeviceSamplerStep::Kind::kGreedy);
  }
  std::vector<const DeviceSamplerSteps*> rows = {&late, nullptr};
  rows.insert(rows.end(), kRoom + 1, &full);
  rows.push_back(&small);
  EXPECT_FALSE(device->keep_choosable(rows));
  EXPECT_EQ(rows[0], nullptr) << "divided first";
  EXPECT_EQ(rows[kRoom + 1], &full);
  EXPECT_EQ(rows[kRoom + 2], nullptr) << "no room";
  EXPECT_EQ(rows[kRoom + 3], &small);
  EXPECT_TRUE(device->keep_choosable(rows));
}

TEST(CudaExecutorSampling, TakesNoMemoryWhereTheHostSamples) {
  EngineOptions options;
  const ModelUnderTest model(oracle_folder("llama"), options);
  options.sample_on_device = false;
  const ModelUnderTest without(oracle_folder("llama"), options);
  Traffic traffic, own;
  const auto device = make_on_device(model, traffic);
  const auto other = make_on_device(without, own);
  // Each of 4 sequences has 4,096 ids with their values, each of 20 rows 16 steps and 3 facts.
  EXPECT_GE(traffic.allocated,
            own.allocated + 4 * 2 * 4096 * 4 + 20 * (16 * sizeof(kernels::cuda::SampleStep) + 12));
  ModelSummary summary, smaller;
  device->describe(summary);
  other->describe(smaller);
  EXPECT_EQ(summary.arena_bytes - smaller.arena_bytes, traffic.allocated - own.allocated);
  EXPECT_NE(device->plan().back().kernel.find("sample"), std::string::npos);
  EXPECT_EQ(other->plan().back().kernel.find("sample"), std::string::npos);
  DeviceSamplerSteps steps;
  steps.add(DeviceSamplerStep::Kind::kGreedy);
  const DeviceSamplerSteps* rows[] = {&steps};
  EXPECT_FALSE(other->keep_choosable(rows));
  EXPECT_EQ(rows[0], nullptr);
  StepDriver driver(model, *device), host(without, *other);
  for (const std::vector<int32_t>& tokens : {std::vector{3, 1, 4}, std::vector{1}}) {
    EXPECT_TRUE(same_floats(driver.step({{0, tokens}}).logits, host.step({{0, tokens}}).logits));
  }
}

TEST(CudaExecutorSampling, NothingLeftIsNoToken) {
  const ModelUnderTest model(oracle_folder("llama"));
  Traffic traffic;
  const auto device = make_on_device(model, traffic);
  StepDriver driver(model, *device);
  DeviceSamplerSteps steps;
  const std::vector<uint32_t> none((static_cast<size_t>(model.config.vocab_size) + 31) / 32);
  steps.add(DeviceSamplerStep::Kind::kMask).mask = none;
  steps.add(DeviceSamplerStep::Kind::kDraw, 0.5);
  EXPECT_EQ(driver.step({{0, {3}, true, &steps}}).words[0], engine::kNothingLeft);
}

}  // namespace
}  // namespace vitrine::testing
