// SPDX-License-Identifier: Apache-2.0
// What a server tells of its blocks, against a mirror that knows of them by that alone: a router's.
#include <gtest/gtest.h>

#include <map>

#include "core/sha256.h"
#include "tests/engine/model_fixture.h"
#include "tests/serve/schedule_fixture.h"
#include "vitrine/kv_events.h"

namespace vitrine::testing {
namespace {

constexpr int kBlock = 16;

uint64_t hash_name(std::string bytes) {
  Sha256 hash;
  hash.update({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  const Sha256Digest digest = hash.finish();
  uint64_t name = 0;
  for (int i = 0; i < 8; ++i) name = name * 256 + digest[static_cast<size_t>(i)];
  return name;
}

std::string little_endian(uint64_t number, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i, number /= 256) text += static_cast<char>(number % 256);
  return text;
}

/// The names of all whole blocks of ids, as the header says that they are made.
std::vector<uint64_t> names_of(std::span<const int32_t> ids, const std::string& tenant = {},
                               size_t block = kBlock) {
  std::vector<uint64_t> names;
  std::string before =
      little_endian(hash_name(std::string("vitrine kv blocks") + '\0' + '\0' + tenant), 8);
  for (size_t at = 0; at + block <= ids.size(); at += block) {
    std::string text = before;
    for (const int32_t id : ids.subspan(at, block)) {
      text += little_endian(static_cast<uint32_t>(id), 4);
    }
    names.push_back(hash_name(text));
    before = little_endian(names.back(), 8);
  }
  return names;
}

/// Keeps what it is told of; what makes no sense fails the test.
class Mirror final : public KvBlockListener {
 public:
  bool on_blocks(const std::string& model, std::vector<KvBlockEvent> events) noexcept override {
    if (refusals > 0) {
      --refusals;
      return false;
    }
    ++calls;
    EXPECT_EQ(model, name);
    EXPECT_FALSE(events.empty());
    for (const KvBlockEvent& event : events) take(event);
    return true;
  }
  /// How many blocks of ids are there, from the first one on.
  int64_t count(std::span<const int32_t> ids, const std::string& tenant = {}) const {
    int64_t found = 0;
    for (const uint64_t block : names_of(ids, tenant)) {
      if (!parents.contains(block)) break;
      ++found;
    }
    return found;
  }

  std::string name;
  int refusals = 0, calls = 0, clears = 0;
  size_t stored = 0, removed = 0;
  std::map<uint64_t, uint64_t> parents;  // of each block that is there; 0: none
  std::vector<KvBlockEvent> all;

 private:
  void take(const KvBlockEvent& event) {
    all.push_back(event);
    if (event.kind == KvBlockEvent::Kind::kCleared) {
      parents.clear();
      ++clears;
      return;
    }
    EXPECT_FALSE(event.blocks.empty());
    if (event.kind == KvBlockEvent::Kind::kStored) return store(event);
    for (const uint64_t block : event.blocks) {
      EXPECT_EQ(parents.erase(block), 1u);
      for (const auto& [child, parent] : parents) EXPECT_NE(parent, block);
      ++removed;
    }
  }
  void store(const KvBlockEvent& event) {
    EXPECT_EQ(event.tokens.size(), event.blocks.size() * kBlock);
    EXPECT_EQ(event.block_size, kBlock);
    EXPECT_TRUE(event.parent == 0 || parents.contains(event.parent));
    uint64_t parent = event.parent;
    for (const uint64_t block : event.blocks) {
      EXPECT_TRUE(parents.emplace(block, parent).second);
      parent = block;
      ++stored;
    }
  }
};

EngineOptions told_options(int sequences, uint64_t kv_bytes = 0) {
  EngineOptions options = test_options(1, kBlock);
  options.max_context = 256;
  options.max_sequences = sequences + 1;
  options.max_step_tokens = 96;
  options.max_logit_rows = sequences;
  options.kv_bytes = kv_bytes;
  return options;
}

std::unique_ptr<Engine> load_told(const char* oracle, int sequences, uint64_t kv_bytes = 0) {
  return Engine::load(oracle_folder(oracle), told_options(sequences, kv_bytes));
}

/// A scheduler that tells a mirror.
struct ToldScheduler {
  explicit ToldScheduler(Engine& engine, const ServerOptions& options = {})
      : stepper(engine), scheduler(stepper, options, [this] { return stepper.now; }) {
    scheduler.tell_blocks_to(mirror, mirror.name);
  }
  std::vector<AnsweredJob> serve(const std::vector<AskedJob>& asked) {
    return serve_all(stepper, asked, scheduler, /*logprobs=*/false);
  }
  int64_t cached(const AskedJob& asked) { return serve({asked}).front().cached_tokens; }

  Mirror mirror;
  TimedStepper stepper;
  serve::Scheduler scheduler;
};

TEST(BlockEvents, APromptIsStoredAndAnotherOneAddsItsRest) {
  const auto engine = load_told("qwen3_moe", 4);
  ToldScheduler told(*engine);
  const std::vector<int32_t> common = prompt_ids(70, engine->summary().vocab_size, 1);
  AskedJob first{.prompt = common, .max_new_tokens = 1};
  told.serve({first});
  ASSERT_EQ(told.mirror.all.size(), 1u);  // 64 of 70 ids
  EXPECT_EQ(told.mirror.all[0].kind, KvBlockEvent::Kind::kStored);
  EXPECT_EQ(told.mirror.all[0].blocks, names_of(common));
  EXPECT_EQ(told.mirror.all[0].parent, 0u);
  EXPECT_EQ(told.mirror.all[0].tokens, std::vector<int32_t>(common.begin(), common.begin() + 64));
  EXPECT_EQ(told.mirror.all[0].adapter, -1);
  // It parts within the third block.
  AskedJob second = first;
  second.prompt.resize(40);
  const auto own = prompt_ids(50, engine->summary().vocab_size, 2);
  second.prompt.insert(second.prompt.end(), own.begin(), own.end());
  told.serve({second});
  ASSERT_EQ(told.mirror.all.size(), 2u);
  const auto names = names_of(second.prompt);
  EXPECT_EQ(told.mirror.all[1].parent, names[1]);
  EXPECT_EQ(told.mirror.all[1].blocks, std::vector<uint64_t>(names.begin() + 2, names.end()));
  EXPECT_EQ(told.mirror.all[1].tokens,
            std::vector<int32_t>(second.prompt.begin() + 32, second.prompt.begin() + 80));
  EXPECT_EQ(told.mirror.count(common), 4);
}

TEST(BlockEvents, AnswersAreStoredToo) {
  const auto engine = load_told("qwen3_moe", 4);
  ToldScheduler told(*engine);
  const AskedJob asked{.prompt = prompt_ids(20, engine->summary().vocab_size, 1),
                       .max_new_tokens = 40};
  std::vector<int32_t> all = asked.prompt;
  const AnsweredJob answer = told.serve({asked}).front();
  all.insert(all.end(), answer.result.tokens.begin(), answer.result.tokens.end());
  EXPECT_EQ(told.mirror.count(all), 3);  // the last token is not computed: 59 are
  EXPECT_EQ(told.mirror.stored, 3u);
}

TEST(BlockEvents, ClearingTellsSo) {
  const auto engine = load_told("qwen3_moe", 4);
  ToldScheduler told(*engine);
  const AskedJob asked{.prompt = prompt_ids(50, engine->summary().vocab_size, 1)};
  told.serve({asked});
  told.scheduler.clear_cache();
  EXPECT_EQ(told.mirror.clears, 1);
  EXPECT_TRUE(told.mirror.parents.empty());
  told.serve({asked});
  EXPECT_EQ(told.mirror.count(asked.prompt), 3);
}

TEST(BlockEvents, TenantsHaveNamesOfTheirOwn) {
  const auto engine = load_told("qwen3_moe", 4);
  ToldScheduler told(*engine);
  AskedJob asked{.prompt = prompt_ids(50, engine->summary().vocab_size, 1), .max_new_tokens = 1};
  asked.tenant = "one";
  told.serve({asked});
  EXPECT_EQ(told.mirror.count(asked.prompt, "one"), 3);
  EXPECT_EQ(told.mirror.count(asked.prompt, "two"), 0);
  EXPECT_EQ(told.mirror.count(asked.prompt), 0);
  asked.tenant = "two";
  told.serve({asked});
  EXPECT_EQ(told.mirror.count(asked.prompt, "two"), 3);
  EXPECT_EQ(told.mirror.parents.size(), 6u);
}

TEST(BlockEvents, NothingIsToldOfWhatIsNotKept) {
  const auto engine = load_told("qwen3_moe", 4);
  AskedJob asked{.prompt = prompt_ids(50, engine->summary().vocab_size, 1)};
  asked.use_cache = false;
  ToldScheduler told(*engine);
  told.serve({asked});
  ServerOptions options;
  options.cache_prefixes = false;
  ToldScheduler without(*engine, options);
  asked.use_cache = true;
  without.serve({asked});
  EXPECT_EQ(told.mirror.calls + without.mirror.calls, 0);
}

// Conversations that begin alike, in a pool that is too small: what the mirror has is what is
// found.
TEST(BlockEvents, AMirrorKnowsWhatIsThere) {
  const auto wide = load_told("qwen3_moe", 6);
  const int64_t blocks = wide->kv_blocks().second;
  const auto engine = load_told("qwen3_moe", 6, wide->options().kv_bytes * 2 / 7);
  ASSERT_LT(engine->kv_blocks().second, blocks / 2);
  ToldScheduler told(*engine);
  const int32_t vocabulary = engine->summary().vocab_size;
  const std::vector<int32_t> system = prompt_ids(110, vocabulary, 1000);
  std::mt19937 rng(11);
  std::vector<AskedJob> asked;
  for (int i = 0; i < 60; ++i) {
    AskedJob one;
    const auto shared = static_cast<std::ptrdiff_t>(i % 4 == 3 ? 0 : i % 3 == 2 ? 77 : 110);
    one.prompt.assign(system.begin(), system.begin() + shared);
    const auto own =
        prompt_ids(1 + static_cast<int>(rng() % 70), vocabulary, static_cast<uint32_t>(i / 2) + 1);
    one.prompt.insert(one.prompt.end(), own.begin(), own.end());
    one.max_new_tokens = 1 + static_cast<int>(rng() % 20);
    one.arrival = 0.02 * static_cast<double>(rng() % 200);
    one.tenant = i % 5 == 0 ? "other" : "";
    asked.push_back(std::move(one));
  }
  for (const AnsweredJob& answer : told.serve(asked)) ASSERT_FALSE(answer.error);
  EXPECT_GT(told.mirror.removed, 20u);
  EXPECT_EQ(told.mirror.stored - told.mirror.removed, told.mirror.parents.size());
  int64_t hits = 0;
  for (AskedJob one : asked) {
    one.arrival = 0;
    const std::span<const int32_t> looked_for = std::span(one.prompt).first(one.prompt.size() - 1);
    const int64_t known = told.mirror.count(looked_for, one.tenant);
    EXPECT_EQ(told.cached(one) / kBlock, known);
    hits += known;
  }
  EXPECT_GT(hits, 60);
  EXPECT_EQ(told.mirror.clears, 0);
}

TEST(BlockEvents, WhoLostSomeIsToldAllAgain) {
  const auto engine = load_told("qwen3_moe", 4);
  ToldScheduler told(*engine);
  const int32_t vocabulary = engine->summary().vocab_size;
  const AskedJob one{.prompt = prompt_ids(50, vocabulary, 1), .max_new_tokens = 1};
  const AskedJob two{.prompt = prompt_ids(70, vocabulary, 2), .max_new_tokens = 1};
  const AskedJob three{.prompt = prompt_ids(20, vocabulary, 3), .max_new_tokens = 1};
  told.serve({one});
  told.mirror.refusals = 1;
  told.serve({two});
  EXPECT_EQ(told.mirror.count(two.prompt), 0);
  told.stepper.now += 2;
  told.serve({three});
  EXPECT_EQ(told.mirror.clears, 1);
  EXPECT_EQ(told.mirror.count(one.prompt), 3);
  EXPECT_EQ(told.mirror.count(two.prompt), 4);
  EXPECT_EQ(told.mirror.count(three.prompt), 1);
  told.scheduler.clear_cache();
  EXPECT_TRUE(told.mirror.parents.empty());
}

TEST(BlockEvents, AServerNamesItsModels) {
  ModelOptions model;
  model.engine.threads = 1;
  model.engine.max_context = 256;
  prepare_for_serving(model, 2);
  std::vector<NamedModel> models;
  models.push_back({"base", Model::open(shipped_model(), model)});
  models.push_back({"again", Model::open(shipped_model(), model)});
  struct Names final : KvBlockListener {
    bool on_blocks(const std::string& model, std::vector<KvBlockEvent> events) noexcept override {
      for (const KvBlockEvent& event : events) {
        EXPECT_EQ(event.block_size, 64);
        blocks[model] += event.blocks.size();
      }
      return true;
    }
    std::map<std::string, size_t> blocks;
  } names;
  {
    Server server(std::move(models), {.block_listener = &names});
    for (const char* name : {"again", "base", "again"}) {
      ServeRequest request;
      request.tokens.assign(130, 5);
      request.max_new_tokens = 1;
      request.model = name;
      ServedRequest served = server.submit(request);
      for (const ServeEvent& event : served) EXPECT_FALSE(event.error);
    }
    EXPECT_EQ(server.telemetry("again").finished, 2u);
    EXPECT_EQ(server.telemetry("base").finished, 1u);
    EXPECT_EQ(server.telemetry("base").first_token_seconds.count, 1u);
    EXPECT_EQ(server.telemetry().finished, 3u);
    EXPECT_EQ(server.telemetry().prompt_tokens, 390u);
    EXPECT_EQ(server.telemetry("again").waiting, 0);
    EXPECT_THROW(server.telemetry("nobody"), Error);
    EXPECT_EQ(server.num_models(), 2u);
  }
  EXPECT_EQ(names.blocks, (std::map<std::string, size_t>{{"again", 2}, {"base", 2}}));
}

}  // namespace
}  // namespace vitrine::testing
