// SPDX-License-Identifier: Apache-2.0
// What a model takes, told without reading its weights: the same as once it is loaded.
#include <tuple>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

auto facts(const ModelSummary& s) {
  return std::tuple(s.path, s.architecture, s.device, s.kernels, s.isa, s.num_layers, s.hidden_size,
                    s.vocab_size, s.max_position_embeddings, s.num_attention_heads,
                    s.num_key_value_heads, s.head_dim, s.num_experts, s.num_experts_per_token,
                    s.num_parameters, s.weight_bytes, s.mapped_bytes, s.kv_bytes, s.kv_codec,
                    s.arena_bytes, s.bytes_per_token, s.invariant, s.threads, s.eos_token_ids);
}

auto facts(const std::vector<PlanEntry>& plan) {
  std::vector<std::tuple<int, std::string, std::string, uint64_t>> all;
  for (const PlanEntry& entry : plan) {
    all.emplace_back(entry.layer, entry.op, entry.kernel, entry.weight_bytes);
  }
  return all;
}

void expect_same(const std::string& path, const EngineOptions& options, const std::string& what) {
  const ModelPlan made = Engine::describe(path, options);
  const auto engine = Engine::load(path, options);
  EXPECT_EQ(facts(made.summary), facts(engine->summary())) << what;
  EXPECT_EQ(facts(made.plan), facts(engine->plan())) << what;
  EXPECT_EQ(made.options.kv_codecs, engine->options().kv_codecs) << what;
  EXPECT_EQ(made.options.max_context, engine->options().max_context) << what;
}

std::vector<ModelVariant> described() {
  std::vector<ModelVariant> all = block_variants();
  for (const std::string& name : oracle_names()) all.push_back({name, "", 32});
  for (const char* scheme : {"int4", "int8", "int4-asymmetric", "int8-asymmetric", "fp8"}) {
    all.push_back({"qwen3_moe", scheme, 32});
  }
  all.push_back({"shipped", "", 32});
  return all;
}

TEST(Describe, SaysWhatIsLoaded) {
  for (const ModelVariant& variant : described()) {
    const VariantFolder folder(variant);
    EngineOptions options = test_options(2);
    expect_same(folder.path(), options, variant.label());
    options.mmap_weights = true;
    expect_same(folder.path(), options, variant.label() + " mapped");
  }
}

TEST(Describe, OfOtherPathsToo) {
  EngineOptions options = test_options();
  options.expert_cache_bytes = 4 << 20;
  expect_same(shipped_model(), options, "with an expert cache");
  options = test_options();
  options.kernels = KernelPath::kReference;
  expect_same(oracle_folder("qwen3_moe"), options, "the reference");
}

TEST(Describe, WithWhatIsRecorded) {
  EngineOptions options = test_options();
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  options.hidden_state_layers = {0, 2};
  expect_same(shipped_model(), options, "hidden states");
  options.attribution = true;
  expect_same(shipped_model(), options, "attribution");
}

/// Scales that are no numbers are found where they are read.
TEST(Describe, ReadsNoWeights) {
  TemporaryFolder folder;
  const std::string path = folder.path() + "/model.gguf";
  std::string bytes = BlockModel("Q4_0").bytes();
  const size_t behind = bytes.size() - 64 * 1024;  // matrices of experts
  std::fill(bytes.begin() + static_cast<std::ptrdiff_t>(behind), bytes.end(), '\xff');
  write_bytes(path, bytes);
  EXPECT_EQ(error_of([&] { Engine::load(path, test_options()); }).kind(), ErrorKind::kBadFile);
  EXPECT_GT(Engine::describe(path, test_options()).summary.weight_bytes, bytes.size() / 2);
}

}  // namespace
}  // namespace vitrine::testing
