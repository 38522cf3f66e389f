// SPDX-License-Identifier: Apache-2.0
// What a model takes, told without reading its weights: the same as once it is loaded.
#include <sys/resource.h>

#include <filesystem>
#include <limits>
#include <tuple>

#include <nlohmann/json.hpp>

#include "tests/engine/engine_fixture.h"
#include "vitrine/engine.h"

namespace vitrine::testing {
namespace {

auto facts(const ModelSummary& s) {
  return std::tuple(s.path, s.architecture, s.device, s.kernels, s.isa, s.num_layers, s.hidden_size,
                    s.vocab_size, s.max_position_embeddings, s.num_attention_heads,
                    s.num_key_value_heads, s.head_dim, s.num_experts, s.num_experts_per_token,
                    s.num_parameters, s.weight_bytes, s.mapped_bytes, s.kv_bytes, s.kv_codec,
                    s.arena_bytes, s.table_bytes, s.bytes_per_token, s.invariant, s.threads,
                    s.eos_token_ids);
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

/// All positions alike, within windows, one latent key, states.
constexpr const char* kKinds[] = {"qwen3_moe", "gemma4_text", "deepseek_v3", "qwen3_next"};

TEST(Describe, OfAnyContext) {
  for (const char* name : kKinds) {
    for (const int context : {1, 65, 128, 0}) {
      EngineOptions options = test_options();
      options.max_context = context;
      options.max_sequences = 3;
      expect_same(oracle_folder(name), options, name + (" of " + std::to_string(context)));
      options.kernels = KernelPath::kReference;
      expect_same(oracle_folder(name), options, name + (" reference " + std::to_string(context)));
    }
  }
}

TEST(Describe, LongestContextIsTheLastThatFits) {
  for (const char* name : kKinds) {
    EngineOptions options = test_options();
    const auto bytes_of = [&](int64_t context) {
      options.max_context = static_cast<int>(context);
      const ModelSummary summary = Engine::describe(oracle_folder(name), options).summary;
      return summary.kv_bytes + summary.table_bytes;
    };
    const Checkpoint checkpoint = Checkpoint::open(oracle_folder(name));
    const uint64_t bytes = bytes_of(100);
    const int64_t found = longest_context(checkpoint, options, bytes);
    EXPECT_GE(found, 100) << name;
    EXPECT_LE(bytes_of(found), bytes) << name;
    EXPECT_GT(bytes_of(found + 1), bytes) << name;
    EXPECT_EQ(longest_context(checkpoint, options, 1), 0) << name;
    const int64_t limit = read_model_facts(checkpoint).max_position_embeddings;
    EXPECT_EQ(longest_context(checkpoint, options, uint64_t{1} << 50), limit) << name;
  }
}

/// While it lives, the process gets no more than 256 MB of addresses beside those that it has.
class AddressLimit {
 public:
  AddressLimit() {
    getrlimit(RLIMIT_AS, &before_);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<uint64_t>(getpagesize()) + (256 << 20);
    setrlimit(RLIMIT_AS, &limit);
  }
  ~AddressLimit() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_;
};

TEST(Describe, MakesNothingOfTheContextThatItTells) {
  TemporaryFolder folder;
  const std::filesystem::path from = oracle_folder("qwen3_moe");
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    if (entry.path().filename() == "config.json") continue;
    std::filesystem::create_symlink(std::filesystem::canonical(entry.path()),
                                    folder / entry.path().filename().string());
  }
  nlohmann::json config = nlohmann::json::parse(std::ifstream(from / "config.json"));
  config["max_position_embeddings"] = 40'000'000;
  write_bytes(folder / "config.json", config.dump());
  EngineOptions options = test_options();
  options.max_context = 0;
  for (const KernelPath kernels : {KernelPath::kFused, KernelPath::kReference}) {
    options.kernels = kernels;
    Engine::describe(folder.path(), options);  // libtorch is mapped outside the limit
    const AddressLimit limit;
    const ModelPlan made = Engine::describe(folder.path(), options);
    EXPECT_EQ(made.options.max_context, 40'000'000);
    EXPECT_GT(made.summary.kv_bytes, 2'000'000'000U);
    EXPECT_GT(made.summary.table_bytes, 500'000'000U);
    EXPECT_EQ(error_of([&] { Engine::load(folder.path(), options); }).kind(),
              ErrorKind::kOutOfMemory);
  }
}

TEST(Describe, GoesBeyondTheModelsLimit) {
  for (const char* name : kKinds) {
    EngineOptions options = test_options();
    options.max_context = std::numeric_limits<int>::max();
    const ModelPlan made = Engine::describe(oracle_folder(name), options);
    EXPECT_EQ(made.options.max_context, options.max_context);
    EXPECT_GT(made.summary.kv_bytes, uint64_t{1} << 31);
    uint64_t bytes = 0;
    for (const KvMemory& kind : kv_memory(Checkpoint::open(oracle_folder(name)), options)) {
      bytes += kind.bytes;
    }
    EXPECT_EQ(bytes, made.summary.kv_bytes) << name;
    EXPECT_EQ(error_of([&] { Engine::load(oracle_folder(name), options); }).kind(),
              ErrorKind::kInvalidArgument);
  }
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
