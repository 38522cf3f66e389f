// SPDX-License-Identifier: Apache-2.0
// Guesses that are a tree on `--device cuda --kernels fused`, emulated: each has the bits of its
// chain on the same device, and answers are those without.
#include "tests/cuda/emulated_counts.h"
#include "tests/cuda/engine_options_on.h"
#include "tests/engine/draft_tree_rows.h"
#include "tests/engine/tree_oracle.h"

namespace vitrine::testing {
namespace {

EngineOptions tree_options(const std::string& codec = "f32") {
  EngineOptions options = options_on(true);
  options.keep_logits = true;
  options.max_context = 160;
  options.kv_codecs = {codec};
  return options;
}

AskedAnswer ask(const Stepper& stepper, const std::string& name, const SamplerOptions& sampler) {
  AskedAnswer asked;
  asked.name = name;
  asked.prompt = prompt_ids(57, stepper.summary().vocab_size);
  asked.options.sampler = sampler;
  asked.options.max_new_tokens = 14;  // over a border of blocks
  asked.options.ignore_end_of_text = true;
  return asked;
}

// Returns the most tokens that passes had on average.
double expect_same_with_trees(Engine& engine, const AskedAnswer& asked) {
  SCOPED_TRACE(asked.name);
  const ToldAnswer plain = make_answer(engine, asked);
  const auto free = engine.kv_blocks().first;
  double longest = 0;
  for (const double probability : {0.4, 1.0}) {
    TreeOracle oracle(plain.result.tokens, probability, engine.summary().vocab_size);
    const SpeculationCounts counts = expect_same_by_oracle(engine, asked, plain, oracle, 9, 4);
    EXPECT_GT(oracle.trees, 0);
    longest = std::max(longest, counts.mean_acceptance_length());
  }
  EXPECT_EQ(engine.kv_blocks().first, free);
  return longest;
}

TEST(CudaTrees, ChangeNothingWithAnySampler) {
  const VariantFolder model({"qwen3_moe", "int4", 32});
  const auto engine = Engine::load(model.path(), tree_options());
  for (const auto& [name, sampler] : all_samplers()) {
    AskedAnswer asked = ask(*engine, name, sampler);
    if (name == "drawn") asked.options.logprobs = 3;
    EXPECT_GT(expect_same_with_trees(*engine, asked), 2);
  }
}

TEST(CudaTrees, ChangeNothingBehindWindowsAndSinks) {
  const auto engine = Engine::load(oracle_folder("gpt_oss"), tree_options());
  EXPECT_GT(expect_same_with_trees(*engine, ask(*engine, "drawn", all_samplers()[1].second)), 2);
}

TEST(CudaTrees, ChangeNothingWithAttribution) {
  EngineOptions options = tree_options();
  options.attribution = true;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  for (const size_t sampler : {2U, 5U}) {  // filters: by the device; mirostat: by the host
    const auto& [name, stages] = all_samplers()[sampler];
    expect_same_with_trees(*engine, ask(*engine, name, stages));
  }
}

struct TreeModel {
  ModelVariant variant;
  std::string codec;
  DType activations = DType::kI8;
};

class CudaTreeSteps : public ::testing::TestWithParam<TreeModel> {};

// Branches that begin in one block and end in the next, from sequences that share their beginning.
TEST_P(CudaTreeSteps, GiveEachNodeTheBitsOfItsChain) {
  EngineOptions options = tree_options(GetParam().codec);
  options.activation_dtype = GetParam().activations;
  options.max_sequences = 12;  // blocks for as many branches
  options.audit_mode = AuditMode::kNone;
  options.audit_level = AuditLevel::kStandard;
  const VariantFolder model(GetParam().variant);
  const auto engine = Engine::load(model.path(), options);
  const int32_t vocab = engine->summary().vocab_size;
  std::mt19937 random(5);
  for (const int past : {3, 61, 64}) {
    const std::vector<int32_t> prompt = prompt_ids(past, vocab);
    const SequenceId base = engine->create_sequence();
    Rows none;
    feed(*engine, base, prompt, 0, prompt.size(), 16, none, StepInput::Rows::kNone);
    const TreeTokens tree(past, 12, vocab, random);
    const SequenceId sequence = engine->fork(base);
    const uint64_t readbacks = engine->readback_count();
    const int64_t steps = steps_started();
    const auto outputs = engine->step({{tree.input(sequence)}});
    EXPECT_EQ(engine->readback_count() - readbacks, 1U);
    EXPECT_EQ(steps_started() - steps, 1);
    const auto rows = logits_of(outputs);
    engine->release(sequence);
    SCOPED_TRACE(std::to_string(past) + " positions before");
    expect_rows_of_chains(*engine, base, tree, rows);
    engine->release(base);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaTreeSteps,
                         ::testing::Values(TreeModel{{"qwen3_moe", "", 0}, "f32"},
                                           TreeModel{{"llama", "", 0}, "i16"},
                                           TreeModel{{"gpt_oss", "", 0}, "bf16"},
                                           TreeModel{{"blocks", "Q4_K", 32}, "f16", DType::kBF16}),
                         [](const auto& info) {
                           return info.param.variant.label() + "_" + info.param.codec;
                         });

// Two trees, a chain and an input without guesses, whose rows stand beside each other.
TEST(CudaTrees, StandSideBySide) {
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), tree_options());
  const std::vector<std::vector<int32_t>> tokens = {{1, 2, 3, 4}, {5, 6, 7, 8, 9}, {10, 11}, {12}};
  const std::vector<std::vector<int32_t>> parents = {{0, 0, 1}, {1, 1, 2}, {}, {}};
  const std::vector<int32_t> drafts = {3, 3, 1, 0};
  SamplerPipeline pipeline = SamplerPipeline::from_options(all_samplers()[3].second);
  const std::vector<int32_t> prompt = prompt_ids(11, engine->summary().vocab_size);
  const auto step = [&](std::span<const size_t> which) {
    std::vector<StepInput> inputs;
    while (inputs.size() < which.size()) {
      StepInput& input = inputs.emplace_back();
      input.sequence = engine->create_sequence();
      input.tokens = prompt;
      engine->step({&input, 1});
    }
    for (size_t i = 0; i < which.size(); ++i) {
      StepInput& input = inputs[i];
      input.tokens = tokens[which[i]];
      input.num_drafts = drafts[which[i]];
      input.draft_parents = parents[which[i]];
      input.sampler = &pipeline;
      input.seed = which[i];
    }
    std::vector<std::pair<int32_t, std::vector<float>>> rows;
    for (const StepOutput& output : engine->step(inputs)) {
      rows.emplace_back(output.token,
                        std::vector<float>(output.scores.begin(), output.scores.end()));
    }
    for (const StepInput& input : inputs) engine->release(input.sequence);
    return rows;
  };
  const std::vector<size_t> all = {0, 1, 2, 3};
  const auto together = step(all);
  std::vector<std::pair<int32_t, std::vector<float>>> alone;
  for (const size_t i : all) std::ranges::copy(step({&i, 1}), std::back_inserter(alone));
  EXPECT_EQ(together, alone);
}

// What a pipeline chooses of a tree, and the bytes that come back.
TEST(CudaTrees, AreCheckedWhereTheLogitsAre) {
  EngineOptions options = options_on(true);
  options.audit_mode = AuditMode::kNone;
  options.audit_level = AuditLevel::kStandard;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  for (const size_t sampler : {0U, 2U, 3U}) {  // greedy, filters, penalties
    AskedAnswer asked = ask(*engine, "", all_samplers()[sampler].second);
    asked.prompt.resize(5);
    const std::vector<int32_t> truth = generate(*engine, asked.prompt, asked.options).tokens;
    TreeOracle oracle(truth, 0.9, engine->summary().vocab_size);
    asked.options.speculation = {.drafter = &oracle, .max_drafts = 7, .max_depth = 3};
    const size_t bytes = bytes_to_host();
    const uint64_t readbacks = engine->readback_count();
    const int64_t before = steps_started();
    EXPECT_EQ(generate(*engine, asked.prompt, asked.options).tokens, truth);
    const int64_t steps = steps_started() - before;
    EXPECT_EQ(static_cast<int64_t>(engine->readback_count() - readbacks), steps);
    EXPECT_LE(static_cast<int64_t>(bytes_to_host() - bytes), steps * (8 * 4 + 8 * 16));
    EXPECT_GT(oracle.trees, 2);
  }
}

}  // namespace
}  // namespace vitrine::testing
