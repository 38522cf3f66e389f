// SPDX-License-Identifier: Apache-2.0
// Whole engines on `--device cuda --kernels fused`, emulated, beside engines on the CPU.
#include "checkpoint/model_config.h"
#include "tests/cuda/emulated_counts.h"
#include "tests/cuda/engine_options_on.h"
#include "tests/engine/adapter_fixture.h"
#include "tests/engine/recorded_answer.h"
#include "vitrine/audit_log.h"

namespace vitrine::testing {
namespace {

RecordedAnswer answer_of(bool is_cuda, const SamplerOptions& sampler, const char* regex,
                         bool attribution = false, const std::string& model = "qwen3_moe") {
  EngineOptions options = options_on(is_cuda);
  options.attribution = attribution;
  return recorded_answer(*Engine::load(oracle_folder(model), options), sampler, regex, 20);
}

void expect_same(const TokenRecord& cpu, const TokenRecord& cuda) {
  EXPECT_EQ(cpu.token, cuda.token);
  ASSERT_EQ(cpu.layers.size(), cuda.layers.size());
  for (size_t l = 0; l < cpu.layers.size(); ++l) {
    EXPECT_EQ(cpu.layers[l].residual_norm, cuda.layers[l].residual_norm);
    EXPECT_EQ(cpu.layers[l].router_probs, cuda.layers[l].router_probs);
  }
  ASSERT_EQ(cpu.has_prediction, cuda.has_prediction);
  if (!cpu.has_prediction) return;
  const auto &a = cpu.prediction, &b = cuda.prediction;
  EXPECT_EQ(a.token, b.token);
  EXPECT_NEAR(a.logprob, b.logprob, 1e-5F);
  EXPECT_EQ(a.sampled.candidates, b.sampled.candidates);
  EXPECT_NEAR(a.sampled.probability, b.sampled.probability, 1e-6F);
  EXPECT_EQ(a.constraint.allowed, b.constraint.allowed);
  EXPECT_NEAR(a.constraint.removed, b.constraint.removed, 1e-5F);
  EXPECT_EQ(a.constraint.first_ruled_out, b.constraint.first_ruled_out);
}

class CudaEngineModels : public ::testing::TestWithParam<std::string> {};

TEST_P(CudaEngineModels, GenerateWhatTheCpuDoesAndRecordIt) {
  SamplerOptions sampled{.temperature = 0.9F, .top_k = 30, .top_p = 0.9F, .min_p = 0.01F};
  sampled.repetition_penalty = 1.2F;
  sampled.seed = 3;
  const SamplerOptions greedy{.temperature = 0};
  for (const SamplerOptions& sampler : {greedy, sampled}) {
    for (const char* regex : {static_cast<const char*>(nullptr), "(ab|cd|[0-9]){4,30}"}) {
      const RecordedAnswer cpu = answer_of(false, sampler, regex, false, GetParam()),
                           cuda = answer_of(true, sampler, regex, false, GetParam());
      EXPECT_EQ(cpu.result.tokens, cuda.result.tokens);
      ASSERT_EQ(cpu.records.size(), cuda.records.size());
      for (size_t i = 0; i < cpu.records.size(); ++i) expect_same(cpu.records[i], cuda.records[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaEngineModels,
                         ::testing::Values("qwen3_moe", "gpt_oss", "glm4_moe"),
                         [](const auto& info) { return info.param; });

/// One choice with those samplers; returns the bytes that came back.
size_t bytes_of_a_choice(const SamplerOptions& sampler) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options_on(true));
  SamplerPipeline pipeline = SamplerPipeline::from_options(sampler);
  const std::vector<int32_t> ids = {1, 2};
  StepInput input{engine->create_sequence(), ids};
  input.sampler = &pipeline;
  const size_t before = bytes_to_host();
  const uint64_t readbacks = engine->readback_count();
  engine->step({&input, 1});
  EXPECT_EQ(engine->readback_count() - readbacks, 1U);
  return bytes_to_host() - before;
}

TEST(CudaEngine, LogitsComeBackOnlyWhereTheHostHasToSample) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options_on(true));
  const size_t row = static_cast<size_t>(engine->summary().vocab_size) * sizeof(float);
  EXPECT_LE(bytes_of_a_choice({.temperature = 0.7F, .top_p = 0.9F}), 64U);
  EXPECT_GE(bytes_of_a_choice({.mirostat = 2}), row) << "no device form";
  SamplerOptions late{.temperature = 0.7F};
  late.repetition_penalty = 1.5F;
  late.samplers = {"temperature", "penalties"};
  EXPECT_GE(bytes_of_a_choice(late), row) << "an edit behind what divides";
}

TEST(CudaEngine, ChoicesTheHostTakesOverAreTheHosts) {
  SamplerOptions late{.temperature = 0.7F, .seed = 5};
  late.repetition_penalty = 1.5F;
  late.samplers = {"temperature", "penalties"};
  const RecordedAnswer cpu = answer_of(false, late, "(ab|cd|[0-9]){4,30}");
  const RecordedAnswer cuda = answer_of(true, late, "(ab|cd|[0-9]){4,30}");
  EXPECT_EQ(cpu.result.tokens, cuda.result.tokens);
  ASSERT_EQ(cpu.records.size(), cuda.records.size());
  for (size_t i = 0; i < cpu.records.size(); ++i) expect_same(cpu.records[i], cuda.records[i]);
}

TEST(CudaEngine, NothingLeftIsAnErrorThatSaysSo) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options_on(true));
  SamplerOptions sampler{.temperature = 0.5F};
  for (int32_t id = 0; id < engine->summary().vocab_size; ++id) {
    sampler.logit_bias.emplace_back(id, -INFINITY);
  }
  SamplerPipeline pipeline = SamplerPipeline::from_options(sampler);
  const std::vector<int32_t> ids = {1, 2};
  StepInput input{engine->create_sequence(), ids};
  input.sampler = &pipeline;
  try {
    engine->step({&input, 1});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("nothing that has a probability"), std::string::npos);
  }
  EXPECT_EQ(engine->length(input.sequence), 0) << "the step was undone";
  input.sampler = nullptr;
  EXPECT_EQ(engine->step({&input, 1}).size(), 1U);
}

// It would have recorded as deferred does, and been measured as naive.
TEST(CudaEngine, TheRecorderIsNotSwitchedToNaive) {
  const auto engine = Engine::load(oracle_folder("llama"), options_on(true));
  engine->set_audit_mode(AuditMode::kNone);
  const Error error = error_of([&] { engine->set_audit_mode(AuditMode::kNaive); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"naive", "--kernels reference"})) << error.what();
  EXPECT_EQ(engine->audit_layout().mode, AuditMode::kNone) << "as it was";
  engine->set_audit_mode(AuditMode::kDeferred);
}

// By the device, or by the host in the middle of a pass: stages in an order that the device lacks,
// or one that has no form there.
TEST(CudaEngine, AttributionFollowsTheTokenThatWasChosen) {
  const SamplerOptions drawn{.temperature = 1.5F, .seed = 4};
  SamplerOptions late = drawn, mirostat = drawn;
  late.repetition_penalty = 1.5F;
  late.samplers = {"temperature", "penalties"};
  mirostat.mirostat = 2;
  for (const SamplerOptions& sampler : {drawn, late, mirostat}) {
    for (const char* regex : {static_cast<const char*>(nullptr), "(ab|cd|[0-9]){4,30}"}) {
      const RecordedAnswer cpu = answer_of(false, sampler, regex, true);
      const RecordedAnswer cuda = answer_of(true, sampler, regex, true);
      EXPECT_EQ(cpu.result.tokens, cuda.result.tokens);
      ASSERT_EQ(cpu.records.size(), cuda.records.size());
      size_t compared = 0;
      for (size_t i = 0; i < cpu.records.size(); ++i) {
        const AttributionRecord &a = cpu.records[i].prediction.attribution,
                                &b = cuda.records[i].prediction.attribution;
        EXPECT_EQ(record_digest(cpu.records[i]), record_digest(cuda.records[i]));
        expect_same_terms(a, b);
        compared += a.terms.size();
      }
      EXPECT_GT(compared, 100U);
    }
  }
}

class CudaEngineAdapters : public ::testing::TestWithParam<ModelVariant> {};

// Sequences of three adapters and of none in one step, against the CPU.
TEST_P(CudaEngineAdapters, HaveTheBitsOfTheCpu) {
  const VariantFolder model(GetParam());
  const ModelConfig config = parse_model_config(Checkpoint::open(model.path()));
  const TemporaryFolder folder;
  const std::vector<AdapterModule> blocks = block_modules(config);
  write_adapter(folder / "all", adapter_config(5, 8), adapter_tensors(all_modules(config), 5, 1));
  write_adapter(folder / "attention", adapter_config(18, 4),
                adapter_tensors(attention_modules(config), 18, 2));
  write_adapter(folder / "block", adapter_config(3, 4), adapter_tensors({blocks.back()}, 3, 3));
  Rows rows[2][4];
  for (const bool is_cuda : {false, true}) {
    EngineOptions options = options_on(is_cuda);
    options.keep_logits = true;
    options.adapters = {folder / "all", folder / "attention", folder / "block"};
    const auto engine = Engine::load(model.path(), options);
    std::vector<SequenceId> sequences;
    for (const int adapter : {0, -1, 2, 1}) sequences.push_back(engine->create_sequence(adapter));
    const std::vector<int32_t> ids = prompt_ids(12, static_cast<int>(config.vocab_size));
    size_t fed[4] = {};
    for (const std::vector<size_t>& counts :
         std::vector<std::vector<size_t>>{{3, 0, 0, 0}, {1, 4, 2, 3}, {0, 1, 0, 0}, {1, 1, 1, 1}}) {
      std::vector<StepInput> inputs;
      for (size_t i = 0; i < 4; ++i) {
        if (counts[i] == 0) continue;
        StepInput& input = inputs.emplace_back();
        input.sequence = sequences[i];
        input.tokens = std::span<const int32_t>(ids).subspan(fed[i], counts[i]);
        input.rows = StepInput::Rows::kAll;
        fed[i] += counts[i];
      }
      const auto outputs = engine->step(inputs);
      for (size_t i = 0; i < 4; ++i) keep_rows(outputs, sequences[i], rows[is_cuda ? 1 : 0][i]);
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(same_bits(rows[0][i], rows[1][i], rows[0][i].size())) << "sequence " << i;
  }
  EXPECT_FALSE(same_bits(rows[0][0], rows[0][1], rows[0][0].size())) << "adapters change nothing";
}

INSTANTIATE_TEST_SUITE_P(
    Models, CudaEngineAdapters,
    ::testing::Values(ModelVariant{"qwen3_moe", "", 0}, ModelVariant{"qwen3_moe", "int4", 32},
                      ModelVariant{"granitemoe", "", 0}, ModelVariant{"qwen2_moe", "int8", 64},
                      ModelVariant{"llama", "", 0}, ModelVariant{"gpt_oss", "", 0},
                      ModelVariant{"gpt_oss", "int4", 32}, ModelVariant{"glm4_moe", "", 0}),
    variant_name);

TEST(CudaEngine, ForksAndTruncationsKeepTheirBits) {
  EngineOptions options = options_on(true);
  options.keep_logits = true;
  const auto engine = Engine::load(oracle_folder("olmoe"), options);
  options.device = Device{};
  const auto cpu = Engine::load(oracle_folder("olmoe"), options);
  const std::vector<int32_t> ids = prompt_ids(12, engine->summary().vocab_size);
  Rows rows[2];
  for (Engine* each : {engine.get(), cpu.get()}) {
    Rows& own = rows[each == cpu.get() ? 1 : 0];
    const SequenceId first = each->create_sequence();
    feed(*each, first, ids, 0, 8, 3, own);
    const SequenceId copy = each->fork(first);
    feed(*each, copy, ids, 8, 12, 0, own);
    each->truncate(first, 5);
    feed(*each, first, ids, 5, 8, 1, own);
  }
  EXPECT_TRUE(same_bits(rows[0], rows[1], ids.size()));
}

}  // namespace
}  // namespace vitrine::testing
