// SPDX-License-Identifier: Apache-2.0
// Samplers on the reference path: as tensor operations, and on the host.
#include "tests/engine/recorded_answer.h"

namespace vitrine::testing {
namespace {

struct Answer : RecordedAnswer {
  bool has_logits = false;
};

Answer answer_of(bool on_device, const SamplerOptions& sampler, const char* regex,
                 bool attribution) {
  EngineOptions options = test_options(1);
  options.kernels = KernelPath::kReference;
  options.max_context = 64;
  options.audit_mode = AuditMode::kDeferred;
  options.attribution = attribution;
  options.sample_on_device = on_device;
  options.keep_logits = false;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  Answer answer{recorded_answer(*engine, sampler, regex, 24)};
  SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = 0.7F});
  const std::vector<int32_t> ids = {1, 2};
  StepInput input{engine->create_sequence(), ids};
  input.sampler = &pipeline;
  answer.has_logits = !engine->step({&input, 1})[0].scores.empty();
  return answer;
}

TEST(DeviceSampling, GivesTheHostsTokensAndRecordsAndReadsNoLogitsBack) {
  SamplerOptions sampler{.temperature = 0.9F, .top_k = 30, .top_p = 0.9F, .min_p = 0.01F};
  sampler.repetition_penalty = 1.2F;
  sampler.seed = 3;
  for (const char* regex : {static_cast<const char*>(nullptr), "(ab|cd|[0-9]){4,30}"}) {
    const Answer host = answer_of(false, sampler, regex, false),
                 device = answer_of(true, sampler, regex, false);
    EXPECT_EQ(host.result.tokens, device.result.tokens);
    EXPECT_TRUE(host.has_logits);
    EXPECT_FALSE(device.has_logits);
    ASSERT_EQ(host.records.size(), device.records.size());
    for (size_t i = 0; i < host.records.size(); ++i) {
      const TokenRecord &ours = device.records[i], &theirs = host.records[i];
      EXPECT_EQ(ours.token, theirs.token);
      ASSERT_EQ(ours.has_prediction, theirs.has_prediction);
      if (!ours.has_prediction) continue;
      EXPECT_EQ(ours.prediction.token, theirs.prediction.token);
      EXPECT_EQ(ours.prediction.logprob, theirs.prediction.logprob);
      EXPECT_EQ(ours.prediction.sampled.candidates, theirs.prediction.sampled.candidates);
      EXPECT_NEAR(ours.prediction.sampled.probability, theirs.prediction.sampled.probability,
                  1e-6F);
      const ConstraintDecision &mine = ours.prediction.constraint,
                               &other = theirs.prediction.constraint;
      EXPECT_EQ(mine.allowed, other.allowed);
      EXPECT_NEAR(mine.removed, other.removed, 1e-5F);
      EXPECT_EQ(mine.first_ruled_out, other.first_ruled_out);
    }
  }
}

TEST(DeviceSampling, AttributionFollowsTheChosenToken) {
  const SamplerOptions sampler{.temperature = 1.5F, .seed = 4};
  EXPECT_THROW(answer_of(false, sampler, nullptr, true), Error);  // chosen too late
  const Answer device = answer_of(true, sampler, nullptr, true);
  int compared = 0;
  for (const TokenRecord& record : device.records) {
    const AttributionRecord& of = record.prediction.attribution;
    if (of.terms.empty()) continue;
    double sum = of.rounding;
    for (const TermRecord& term : of.terms) sum += term.value;
    EXPECT_NEAR(sum, of.logit, 1e-3);
    ++compared;
  }
  EXPECT_GT(compared, 20);
}

TEST(DeviceSampling, NothingLeftIsAnErrorThatSaysSo) {
  SamplerOptions sampler{.temperature = 0.5F};
  for (int32_t id = 0; id < 1024; ++id) sampler.logit_bias.emplace_back(id, -INFINITY);
  try {
    EngineOptions options = test_options(1);
    options.kernels = KernelPath::kReference;
    options.sample_on_device = true;
    const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
    sampler.logit_bias.resize(static_cast<size_t>(engine->summary().vocab_size));
    SamplerPipeline pipeline = SamplerPipeline::from_options(sampler);
    const std::vector<int32_t> ids = {1, 2};
    StepInput input{engine->create_sequence(), ids};
    input.sampler = &pipeline;
    engine->step({&input, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("nothing that has a probability"), std::string::npos);
  }
}

}  // namespace
}  // namespace vitrine::testing
