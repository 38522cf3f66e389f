// SPDX-License-Identifier: Apache-2.0
// A step allocates nothing. The allocator of this whole process is counted, on every thread.
#include <atomic>
#include <cerrno>
#include <cstddef>

#include "checkpoint/model_config.h"
#include "examples/kv_codec/hadamard_int8.h"
#include "tests/checkpoint/quantized_folders.h"
#include "tests/draft_heads/head_folders.h"
#include "tests/engine/adapter_fixture.h"
#include "tests/engine/window_fixture.h"
#include "vitrine/audit.h"
#include "vitrine/drafters.h"
#include "vitrine/federation_engine.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__GLIBC__)
#define VITRINE_COUNTS_ALLOCATIONS 0
#else
#define VITRINE_COUNTS_ALLOCATIONS 1
#endif

namespace {
std::atomic<bool> counting{false};
std::atomic<int64_t> allocations{0};

[[maybe_unused]] void count_one() {
  if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}
}  // namespace

#if VITRINE_COUNTS_ALLOCATIONS
// Stands before the C library's for this program and its libraries; operator new comes here too.
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* memory, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

__attribute__((visibility("default"))) void* malloc(size_t size) {
  count_one();
  return __libc_malloc(size);
}
__attribute__((visibility("default"))) void* calloc(size_t count, size_t size) {
  count_one();
  return __libc_calloc(count, size);
}
__attribute__((visibility("default"))) void* realloc(void* memory, size_t size) {
  count_one();
  return __libc_realloc(memory, size);
}
__attribute__((visibility("default"))) void* memalign(size_t alignment, size_t size) {
  count_one();
  return __libc_memalign(alignment, size);
}
__attribute__((visibility("default"))) void* aligned_alloc(size_t alignment, size_t size) {
  count_one();
  return __libc_memalign(alignment, size);
}
__attribute__((visibility("default"))) int posix_memalign(void** memory, size_t alignment,
                                                          size_t size) {
  count_one();
  *memory = __libc_memalign(alignment, size);
  return *memory == nullptr ? ENOMEM : 0;
}
}
#endif

namespace vitrine::testing {
namespace {

/// Allocations made while `action` runs.
template <typename Action>
int64_t allocations_in(Action action) {
  allocations.store(0);
  counting.store(true);
  action();
  counting.store(false);
  return allocations.load();
}

class Allocation : public ::testing::TestWithParam<ModelVariant> {
 protected:
  void SetUp() override {
    if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  }
};

void expect_none(Engine& engine, std::span<const StepInput> inputs, const char* what) {
  EXPECT_EQ(allocations_in([&] { engine.step(inputs); }), 0) << what;
}

void check_steps(const std::string& path, bool attribution, bool hidden_states = false,
                 bool mapped = false) {
  EngineOptions options = test_options(2, 16);
  options.mmap_weights = mapped;
  options.attribution = attribution;
  options.audit_mode = AuditMode::kDeferred;
  options.audit_level = AuditLevel::kFull;
  if (hidden_states) options.hidden_state_layers = {0, 1, 2};
  options.keep_logits = false;
  auto engine = Engine::load(path, options);
  SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kOverwrite);
  engine->set_audit_sink(&ring);

  const int vocab = engine->summary().vocab_size;
  const std::vector<int32_t> ids = prompt_ids(100, vocab);
  SamplerPipeline sampler = SamplerPipeline::from_options(
      {.temperature = 0.8f, .top_k = 50, .top_p = 0.95f, .min_p = 0.01f});
  SamplerPipeline greedy = SamplerPipeline::from_options({.temperature = 0});
  StepInput inputs[5];
  const std::atomic<bool> flags[5] = {};
  for (size_t i = 0; i < 5; ++i) {
    inputs[i].sequence = engine->create_sequence();
    inputs[i].cancelled = &flags[i];
    inputs[i].tokens = std::span(ids).first(3 + i);
    inputs[i].sampler = i == 0 ? nullptr : i == 1 ? &greedy : &sampler;
    inputs[i].seed = i;
  }
  engine->step(inputs);  // the sampler's buffers, once

  inputs[0].tokens = std::span(ids).first(60);
  inputs[0].rows = StepInput::Rows::kAll;
  expect_none(*engine, std::span(inputs).first(1), "a prefill of one, every row");
  inputs[0].tokens = inputs[4].tokens = std::span(ids).subspan(60, 23);
  inputs[0].rows = StepInput::Rows::kNone;
  expect_none(*engine, inputs, "a ragged batch, greedy and sampled");
  inputs[2].tokens = std::span(ids).first(40);
  expect_none(*engine, std::span(inputs).subspan(2, 1), "a prefill of one, sampled");
  for (size_t i = 0; i < 5; ++i) {
    inputs[i].tokens = std::span(ids).subspan(20 + i, 1);
    inputs[i].rows = StepInput::Rows::kLast;
  }
  for (int i = 0; i < 40; ++i) expect_none(*engine, inputs, "decoding five, across block borders");
  for (int i = 0; i < 20; ++i) expect_none(*engine, std::span(inputs).first(1), "decoding, greedy");
  for (int i = 0; i < 20; ++i) {
    expect_none(*engine, std::span(inputs).subspan(3, 1), "decoding, sampled");
  }
  EXPECT_GT(ring.drain_records().size(), 100u);

  std::vector<ForcedRoute> routes;
  for (const AuditLayout::Layer& layer : engine->audit_layout().layers) {
    for (int32_t slot = 0; slot < layer.top_k; ++slot) {
      routes.push_back({0, layer.layer, slot, slot == 0 ? 0.0F : ForcedRoute::kRouterWeight});
    }
  }
  inputs[0].routes = routes;
  expect_none(*engine, inputs, "forced routes");
  inputs[0].routes = {};

  // A shared block is copied within a step.
  const int64_t border = engine->length(inputs[1].sequence) / 16 * 16;
  engine->truncate(inputs[1].sequence, border);
  const SequenceId fork = engine->fork(inputs[1].sequence);
  engine->truncate(fork, border - 3);
  StepInput copying = inputs[1];
  copying.sequence = fork;
  expect_none(*engine, {&copying, 1}, "copy on write");

  engine->set_audit_mode(AuditMode::kNone);
  expect_none(*engine, inputs, "audit off");
  engine->set_audit_mode(AuditMode::kNaive);
  engine->step(inputs);
  expect_none(*engine, inputs, "naive audit, after its first pass");
}

TEST_P(Allocation, AStepAllocatesNothing) {
  const VariantFolder folder(GetParam());
  check_steps(folder.path(), /*attribution=*/false);
  check_steps(folder.path(), /*attribution=*/true);
  check_steps(folder.path(), /*attribution=*/true, /*hidden_states=*/true);
}

// Blocks below windows are given back, checkpoints are kept and asked back, tokens run again.
TEST(AllocationOfWindows, AStepAllocatesNothing) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  const WindowFolder folder("gpt_oss", 37);
  EngineOptions options = window_options(16, 2);
  options.keep_logits = false;
  auto engine = Engine::load(folder.path(), options);
  const std::vector<int32_t> ids = prompt_ids(600, engine->summary().vocab_size);
  StepInput inputs[2];
  for (StepInput& input : inputs) input.sequence = engine->create_sequence();
  for (int turn = 0; turn < 6; ++turn) {
    for (StepInput& input : inputs) input.tokens = std::span(ids).first(24);
    for (int i = 0; i < 3; ++i) expect_none(*engine, inputs, "prefill");
    for (StepInput& input : inputs) input.tokens = std::span(ids).first(1);
    for (int i = 0; i < 20; ++i) expect_none(*engine, inputs, "decoding");
    engine->release_prefix(engine->retain(inputs[0].sequence, 10));
    static_cast<void>(engine->retain(inputs[0].sequence, engine->length(inputs[0].sequence)));
  }
  engine->truncate(inputs[1].sequence, 300);
  expect_none(*engine, inputs, "tokens that are run again");
}

// Blocks are closed, their open forms given back, and tokens of one that was cut run again.
TEST(AllocationOfTiles, AStepAllocatesNothing) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  register_kv_codec(std::make_shared<HadamardInt8>());
  const WindowFolder folder("qwen3_moe", nlohmann::json::object());
  EngineOptions options = window_options(64, 2);
  options.kv_codecs = {"hadamard_i8"};
  options.keep_logits = false;
  auto engine = Engine::load(folder.path(), options);
  const std::vector<int32_t> ids = prompt_ids(600, engine->summary().vocab_size);
  StepInput inputs[2];
  for (StepInput& input : inputs) input.sequence = engine->create_sequence();
  for (int i = 0; i < 12; ++i) {
    for (StepInput& input : inputs) input.tokens = std::span(ids).first(24);
    expect_none(*engine, inputs, "prefill");
  }
  for (StepInput& input : inputs) input.tokens = std::span(ids).first(1);
  for (int i = 0; i < 70; ++i) expect_none(*engine, inputs, "decoding");
  engine->truncate(inputs[1].sequence, 100);
  expect_none(*engine, inputs, "tokens that are run again");
}

// Inputs are put in the order of a matrix's columns.
TEST(AllocationOfOrders, AStepAllocatesNothing) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  EngineOptions options = test_options(2, 16);
  options.max_context = 64;
  auto engine = Engine::load(quantized_folder("gptq_v1_act_order"), options);
  const std::vector<int32_t> ids = prompt_ids(12, engine->summary().vocab_size);
  StepInput inputs[2];
  for (StepInput& input : inputs) input.sequence = engine->create_sequence();
  for (StepInput& input : inputs) input.tokens = ids;
  for (int i = 0; i < 2; ++i) expect_none(*engine, inputs, "prefill");
  for (StepInput& input : inputs) input.tokens = std::span(ids).first(1);
  for (int i = 0; i < 10; ++i) expect_none(*engine, inputs, "decoding");
}

TEST(AllocationOfMapped, AStepAllocatesNothing) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  const VariantFolder folder({"blocks", "Q4_K", 32});
  check_steps(folder.path(), /*attribution=*/true, /*hidden_states=*/false, /*mapped=*/true);
}

TEST_P(Allocation, KeptLogitsAreNotCopied) {
  const VariantFolder folder(GetParam());
  auto engine = Engine::load(folder.path(), test_options(2, 16));
  const std::vector<int32_t> ids = prompt_ids(50, engine->summary().vocab_size);
  StepInput input;
  input.sequence = engine->create_sequence();
  input.tokens = ids;
  input.rows = StepInput::Rows::kAll;
  engine->step({&input, 1});
  expect_none(*engine, {&input, 1}, "every row kept");
}

// The counter counts: a stage that allocates is seen, and so is every way to allocate.
TEST_P(Allocation, APlantedViolationIsSeen) {
  class Allocator : public SamplerStage {
   public:
    std::string_view name() const override { return "allocator"; }
    uint32_t stage_id() const override { return kFirstHostStageId; }
    void apply(Candidates& candidates, const SampleContext&) override {
      const std::vector<float> copy(candidates.logits.begin(), candidates.logits.end());
      candidates.selected = copy[0] > copy[1] ? 0 : 1;
    }
  };
  const VariantFolder folder(GetParam());
  auto engine = Engine::load(folder.path(), test_options(2, 16));
  SamplerPipeline pipeline;
  pipeline.add(std::make_unique<Allocator>());
  const std::vector<int32_t> ids = prompt_ids(4, engine->summary().vocab_size);
  StepInput input;
  input.sequence = engine->create_sequence();
  input.tokens = ids;
  input.sampler = &pipeline;
  engine->step({&input, 1});
  EXPECT_GT(allocations_in([&] { engine->step({&input, 1}); }), 0);

  // Through volatile pointers: the compiler may otherwise leave a pair of them out.
  void* volatile memory = nullptr;
  EXPECT_EQ(allocations_in([&] { memory = std::malloc(10); }), 1);
  std::free(memory);
  EXPECT_EQ(allocations_in([&] { memory = std::aligned_alloc(64, 64); }), 1);
  std::free(memory);
  EXPECT_EQ(allocations_in([&] { memory = ::operator new(10); }), 1);
  ::operator delete(memory);
  EXPECT_EQ(allocations_in([] {}), 0);
}

// Adapters beside the base, their joint, a mask on it and its record.
void check_federation(const std::string& base, bool attribution) {
  const TemporaryFolder folder;
  FederationSpec spec;
  spec.path = folder / "federation.json";
  spec.base = base;
  const ModelConfig config = parse_model_config(Checkpoint::open(spec.base));
  for (uint32_t i = 0; i < 2; ++i) {
    const std::string name = "adapter" + std::to_string(i);
    write_adapter(folder / name, adapter_config(4, 8),
                  adapter_tensors(i == 0 ? all_modules(config) : block_modules(config), 4, i));
    spec.specialists.push_back({name, spec.base, folder / name});
  }
  spec.combiner.kind = CombinerSpec::Kind::kGate;
  spec.combiner.hidden_size = config.hidden_size;
  spec.combiner.gate = spread_values(2 * static_cast<size_t>(config.hidden_size), 5, 0.3F);
  spec.combiner.bias = {0.0F, 0.1F};
  EngineOptions options = test_options(2, 16);
  options.audit_mode = AuditMode::kDeferred;
  options.attribution = attribution;
  const auto federation = Federation::load(spec, options);
  SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kOverwrite);
  federation->set_audit_sink(&ring);
  SamplerPipeline sampler = SamplerPipeline::from_options({.temperature = 0.8f, .top_k = 50});
  const std::vector<int32_t> ids = prompt_ids(60, 256);
  StepInput inputs[2];
  for (StepInput& input : inputs) {
    input.sequence = federation->create_sequence();
    input.tokens = std::span(ids).first(20);
    input.sampler = &sampler;
  }
  const std::vector<uint32_t> mask(
      (static_cast<size_t>(federation->summary().vocab_size) + 31) / 32, 0x5a5a5a5aU);
  inputs[1].allowed_tokens = mask;
  federation->step(inputs);
  for (int i = 0; i < 40; ++i) {  // across block borders
    for (StepInput& input : inputs) input.tokens = std::span(ids).subspan(20, 1);
    EXPECT_EQ(allocations_in([&] { federation->step(inputs); }), 0) << base << " " << i;
  }
}

TEST(Federated, AStepAllocatesNothing) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  for (const char* name : {"qwen3_moe", "qwen2_moe", "llama"}) {
    for (const bool attribution : {false, true}) check_federation(oracle_folder(name), attribution);
  }
}

/// An answer that is guessed ahead, between its first step and its last.
void expect_answer_without_allocation(Engine& engine, Drafter& drafter, int32_t depth = 0) {
  const std::vector<int32_t> ids = prompt_ids(20, engine.summary().vocab_size);
  GenerateOptions options;
  options.max_new_tokens = 100;
  options.ignore_end_of_text = true;
  options.sampler.temperature = 0;
  options.speculation = {.drafter = &drafter, .scope = "test", .max_depth = depth};
  generate(engine, ids, options);  // an answer that the next one is guessed by
  Generation generation(engine, ids, options);
  int64_t drafts = 0;
  const auto step = [&] {
    const StepInput input = generation.next_input();
    drafts += input.num_drafts;
    generation.accept(engine.step({&input, 1}));
  };
  step();
  while (!generation.finished() && generation.result().tokens.size() < 80) {
    EXPECT_EQ(allocations_in(step), 0) << drafter.name();
  }
  EXPECT_GT(drafts, 20) << drafter.name();
}

TEST(Speculated, AnAnswerAllocatesNothingBetweenItsEnds) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), test_options());
  for (const std::string& name : drafter_names()) {
    for (const int32_t depth : {0, 4}) {
      expect_answer_without_allocation(*engine, *make_drafter(name), depth);
    }
  }
}

TEST(Speculated, HeadsAllocateNothingBetweenAnAnswersEnds) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  const std::string model = oracle_folder("qwen3_moe");
  const ModelConfig config = parse_model_config(Checkpoint::open(model));
  const HeadSizes sizes = {config.hidden_size, config.vocab_size, config.vocab_size / 2};
  const TemporaryFolder folder;
  write_checkpoint(folder / "eagle3", eagle_config(sizes), eagle_tensors(false, sizes));
  write_checkpoint(folder / "peagle", eagle_config(sizes), eagle_tensors(true, sizes));
  write_checkpoint(folder / "medusa", medusa_config(), medusa_tensors(sizes));
  for (const std::string& name : draft_head_names()) {
    DraftHeadOptions options;
    if (name != "medusa") options.layers = {0, 1, 2};
    const auto heads = make_head_drafter(name, folder / name, model, options);
    EngineOptions engine_options = test_options();
    engine_options.feature_layers.assign(heads->feature_layers().begin(),
                                         heads->feature_layers().end());
    const auto engine = Engine::load(model, engine_options);
    for (const int32_t depth : {0, 4}) expect_answer_without_allocation(*engine, *heads, depth);
  }
}

TEST(Speculated, EarlyExitAllocatesNothingBetweenAnAnswersEnds) {
  if (!VITRINE_COUNTS_ALLOCATIONS) GTEST_SKIP() << "a sanitizer has the allocator";
  const auto engine = Engine::load(shipped_model(), test_options());
  for (const EarlyExitOptions& exit : std::vector<EarlyExitOptions>{{2}, {1, 3}}) {
    expect_answer_without_allocation(*engine, *make_early_exit(*engine, exit));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, Allocation,
    ::testing::Values(ModelVariant{"qwen3_moe", "int4", 32},
                      ModelVariant{"qwen3_moe_sparse2", "", 0},
                      ModelVariant{"qwen2_moe", "int8", 64}, ModelVariant{"olmoe", "", 0},
                      ModelVariant{"gemma4_text", "", 0}, ModelVariant{"deepseek_v3", "", 0},
                      ModelVariant{"llama", "int4", 64}, ModelVariant{"shipped", "", 0}),
    variant_name);

}  // namespace
}  // namespace vitrine::testing
