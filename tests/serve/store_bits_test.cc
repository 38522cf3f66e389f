// SPDX-License-Identifier: Apache-2.0
// Answers that go on from another server's files have the bits of cold ones: models that keep all,
// states or windows, with each way to keep keys and values.
#include "tests/engine/adapter_fixture.h"
#include "tests/engine/tile_codecs.h"
#include "tests/engine/window_fixture.h"
#include "tests/serve/store_fixture.h"
#include "vitrine/kv_codec.h"

namespace vitrine::testing {
namespace {

namespace fs = std::filesystem;

/// A model, how it keeps keys and values, and its window where that is another one.
struct StoreCase {
  std::string model, codec = "f32";
  int block_size = 16;
  int64_t window = 0;
  std::string label() const { return model + "_" + codec + "_" + std::to_string(block_size); }
};

// NOLINTNEXTLINE(readability-identifier-naming): GoogleTest's name
void PrintTo(const StoreCase& one, std::ostream* out) { *out << one.label(); }

/// A host's codecs: one that closes blocks, one that never does.
void register_host_codecs() {
  static const bool is_done = [] {
    const KvTileForm integers{KvTileKind::kInt8, 32, 16};
    register_kv_codec(std::make_shared<FormCodec>(
        "stored_closing", FormCodec::Forms{.open = {}, .closed = integers, .lag = 5}));
    register_kv_codec(
        std::make_shared<FormCodec>("stored_open", FormCodec::Forms{.closes = false}));
    return true;
  }();
  EXPECT_TRUE(is_done);
}

/// Some begin alike, some go on where others ended.
std::vector<AskedJob> asked_of(int32_t vocab_size) {
  const std::vector<int32_t> system = prompt_ids(110, vocab_size, 1000);
  std::vector<AskedJob> all;
  for (int i = 0; i < 8; ++i) {
    AskedJob asked;
    if (i % 4 != 3) asked.prompt.assign(system.begin(), system.end() - (i % 3 == 2 ? 33 : 0));
    const auto own = prompt_ids(20 + 7 * i, vocab_size, static_cast<uint32_t>(i) + 1);
    asked.prompt.insert(asked.prompt.end(), own.begin(), own.end());
    asked.max_new_tokens = 3 + i;
    asked.seed = static_cast<uint64_t>(i);
    asked.temperature = i % 2 == 0 ? 0.0F : 0.9F;
    asked.tenant = i % 4 == 1 ? "other" : "";
    all.push_back(std::move(asked));
  }
  return all;
}

class StoreBits : public ::testing::TestWithParam<StoreCase> {
 protected:
  StoreBits() {
    register_host_codecs();
    if (GetParam().window > 0) folder_.emplace(GetParam().model, GetParam().window);
  }
  std::unique_ptr<Engine> load(AuditMode audit = AuditMode::kNone) const {
    EngineOptions options = store_options(GetParam().codec, GetParam().block_size);
    options.audit_mode = audit;
    return Engine::load(folder_ ? folder_->path() : oracle_folder(GetParam().model), options);
  }
  std::optional<WindowFolder> folder_;
  TemporaryFolder store_;
};

TEST_P(StoreBits, ARestartChangesNoBit) {
  const auto alone = load();
  const std::vector<AskedJob> asked = asked_of(alone->summary().vocab_size);
  const std::vector<GenerateResult> expected = answer_alone(*alone, asked);
  const PrefixStoreOptions plain{.folder = store_ / "plain"};
  const PrefixStoreOptions secret{
      .folder = store_ / "secret",
      .key = [](const std::string& tenant) { return "key of " + tenant; }};
  for (const PrefixStoreOptions& options : {plain, secret}) {
    int64_t cold = 0;
    for (int start = 0; start < 3; ++start) {
      SCOPED_TRACE(options.folder + ", start " + std::to_string(start));
      const auto engine = load();
      const auto free = engine->kv_blocks();
      const StoredRun run = run_stored(*engine, options, asked);
      expect_same_answers(expected, run.answers);
      EXPECT_EQ(run.telemetry.store_refused, 0u);
      EXPECT_EQ(run.notes, std::vector<std::string>());
      EXPECT_EQ(engine->kv_blocks(), free);
      if (start == 0) {
        cold = run.computed;
        EXPECT_GT(run.telemetry.store_written, 2u);
        EXPECT_EQ(run.telemetry.store_read, 0u);
      } else {
        EXPECT_GT(run.telemetry.store_read_tokens, 300u);
        EXPECT_LT(run.computed, cold / 2);
      }
    }
  }
}

// What the recorder said comes along, so a server that records goes on from files, too.
TEST_P(StoreBits, ARecordedRestartChangesNoBit) {
  const auto alone = load();
  const std::vector<AskedJob> asked = asked_of(alone->summary().vocab_size);
  const std::vector<GenerateResult> expected = answer_alone(*alone, asked);
  const PrefixStoreOptions options{.folder = store_ / "recorded"};
  for (int start = 0; start < 2; ++start) {
    const auto engine = load(AuditMode::kDeferred);
    const StoredRun run = run_stored(*engine, options, asked);
    expect_same_answers(expected, run.answers);
    EXPECT_EQ(run.telemetry.store_read > 0, start > 0);
    EXPECT_GT(run.telemetry.record_bytes, 0);
  }
  // Without records the same files are of use, but not the other way round.
  const auto unrecorded = load();
  EXPECT_GT(run_stored(*unrecorded, options, asked).telemetry.store_read, 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Models, StoreBits,
    ::testing::Values(StoreCase{"qwen3_moe"}, StoreCase{"qwen3_moe", "i16", 64},
                      StoreCase{"qwen3_moe", "bf16"}, StoreCase{"qwen3_moe", "f16"},
                      StoreCase{"qwen3_moe", "stored_closing", 64},
                      StoreCase{"qwen3_moe", "stored_open", 64}, StoreCase{"qwen3_next"},
                      StoreCase{"lfm2_moe", "i16", 64}, StoreCase{"qwen3_5_moe_text"},
                      StoreCase{"gpt_oss", "f32", 16, 37}, StoreCase{"gpt_oss", "i16", 64, 37},
                      StoreCase{"gemma4_text", "f32", 16, 50}, StoreCase{"mixtral", "f32", 16, 45},
                      StoreCase{"deepseek_v3"}),
    [](const auto& info) { return info.param.label(); });

TEST(StoreScopes, AdaptersAndTenantsKeepTheirOwn) {
  TemporaryFolder folder;
  EngineOptions options = store_options();
  const std::string model = oracle_folder("qwen3_moe");
  const ModelConfig config = parse_model_config(Checkpoint::open(model));
  for (uint32_t i = 0; i < 2; ++i) {
    options.adapters.push_back(folder / ("adapter" + std::to_string(i)));
    write_adapter(options.adapters.back(), adapter_config(4, 8),
                  adapter_tensors(attention_modules(config), 4, i + 1));
  }
  const auto engine = Engine::load(model, options);
  AskedJob asked;
  asked.prompt = prompt_ids(90, engine->summary().vocab_size, 5);
  const PrefixStoreOptions store{.folder = folder / "store"};
  for (int start = 0; start < 2; ++start) {
    for (const int adapter : {-1, 0, 1}) {
      asked.adapter = adapter;
      const StoredRun run = run_stored(*engine, store, {asked});
      const int64_t cached = run.answers[0].cached_tokens;
      EXPECT_EQ(cached > 0, start > 0) << adapter;
    }
  }
  asked.tenant = "somebody else";
  EXPECT_EQ(run_stored(*engine, store, {asked}).cached(), 0);
}

// A block that is not full held another tenant's positions before: none of these is in the file.
TEST(StoreScopes, AFileHoldsNothingOfOthers) {
  TemporaryFolder folder;
  const WindowFolder window("gpt_oss", 37);
  for (const std::string& model : {oracle_folder("qwen3_next"), window.path()}) {
    SCOPED_TRACE(model);
    EngineOptions options = store_options();
    options.max_sequences = 2;  // blocks are used again at once
    options.max_logit_rows = 1;
    const int32_t vocab = Engine::describe(model, options).summary.vocab_size;
    AskedJob other{.prompt = prompt_ids(150, vocab, 8), .tenant = "other"};
    AskedJob own{.prompt = prompt_ids(90, vocab, 9), .arrival = 100, .tenant = "own"};
    other.use_cache = false;
    const std::string name = fs::path(model).filename().string();
    const PrefixStoreOptions alone{.folder = folder / (name + "alone")},
        behind{.folder = folder / (name + "behind")};
    run_stored(*Engine::load(model, options), alone, {own});
    run_stored(*Engine::load(model, options), behind, {other, own});
    const std::vector<fs::path> files = files_in(alone.folder), same = files_in(behind.folder);
    ASSERT_FALSE(files.empty());
    ASSERT_EQ(files.size(), same.size());
    for (size_t i = 0; i < files.size(); ++i) {
      EXPECT_EQ(files[i].filename(), same[i].filename());
      EXPECT_TRUE(bytes_of_file(files[i]) == bytes_of_file(same[i])) << files[i];
    }
  }
}

TEST(StoreScopes, AHostsCodecSaysItsVersion) {
  class Third final : public FormCodec {
   public:
    Third() : FormCodec("stored_third", Forms{.closes = false}) {}
    int version() const override { return 3; }
  };
  static const bool is_known = [] {
    register_kv_codec(std::make_shared<Third>());
    return true;
  }();
  ASSERT_TRUE(is_known);
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), store_options("stored_third", 64));
  const serve::StoreFields fields = serve::StoreFit(*engine, false).fields(-1);
  const std::pair<std::string, std::string> expected("kv_codecs", "stored_third 3");
  EXPECT_EQ(std::ranges::count(fields, expected), 1);
}

// What is used again and gives way to others, with nobody idle in between, comes back from the
// files.
TEST(StoreScopes, WhatWasEvictedComesBack) {
  TemporaryFolder folder;
  EngineOptions options = store_options();
  auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  options.kv_bytes =
      engine->options().kv_bytes / static_cast<uint64_t>(engine->kv_blocks().second) * 24;
  engine = Engine::load(oracle_folder("qwen3_moe"), options);
  const int32_t vocab = engine->summary().vocab_size;
  std::vector<AskedJob> asked(1);
  asked[0].prompt = prompt_ids(30, vocab, 99);  // the store opens meanwhile
  for (int i = 0; i < 14; ++i) {
    AskedJob one;
    const bool is_first = i < 3 || i == 13;
    one.prompt = prompt_ids(is_first ? 130 : 190, vocab, is_first ? 1 : static_cast<uint32_t>(i));
    one.arrival = i < 13 ? 100 + 1e-6 * i : 1000;
    asked.push_back(one);
  }
  TimedStepper stepper(*engine);
  ServerOptions serving;
  serving.policy = "fcfs";
  serving.max_running = 1;
  serving.prefix_store.folder = folder / "store";
  serve::Scheduler scheduler(stepper, serving, [&] { return stepper.now; });
  scheduler.keep_in(*engine, std::make_unique<serve::PrefixStore>(
                                 serving.prefix_store, serve::StoreFit(*engine, false), [] {}));
  const std::vector<AnsweredJob> answers = serve_all(stepper, asked, scheduler);
  const ServerTelemetry told = scheduler.telemetry();
  EXPECT_GT(told.evicted_prefixes, 3u);
  EXPECT_GT(told.store_read, 0u);
  EXPECT_GT(answers[14].cached_tokens, 100);
  EXPECT_EQ(answers[14].result.tokens, answers[1].result.tokens);
}

}  // namespace
}  // namespace vitrine::testing
