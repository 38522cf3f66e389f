// SPDX-License-Identifier: Apache-2.0
// How a budget is divided where some layers are within a window, and what a small one holds.
#include "tests/engine/window_fixture.h"
#include "vitrine/engine.h"

namespace vitrine::testing {
namespace {

constexpr uint64_t kLayerBlock = 16 * 2 * 32 * 2 * 4;  // of gpt_oss' oracle, as f32

Engine* load_again(std::unique_ptr<Engine>& engine, const std::string& path,
                   EngineOptions options) {
  engine = Engine::load(path, options);
  EXPECT_EQ(engine->summary().kv_bytes, engine->options().kv_bytes);
  uint64_t bytes = 0;
  const std::vector<KvMemory> kinds = kv_memory(Checkpoint::open(path), options);
  for (const KvMemory& kind : kinds) bytes += kind.bytes;
  EXPECT_EQ(bytes, engine->options().kv_bytes);
  return engine.get();
}

// One layer of three sees all positions.
TEST(WindowBudget, IsDividedByWhatWindowsNeed) {
  const WindowFolder folder("gpt_oss", 37);
  EngineOptions options = window_options(16);
  options.kv_codecs = {"f32"};
  std::unique_ptr<Engine> engine;
  // Contexts of 44 blocks. A window of 37 positions and a token behind it are in 9 blocks at most,
  // as attention reads them 64 by 64 and a block below them stays; each sequence may begin another
  // one and 48 tokens of a step are in 5; then there is room for five earlier windows.
  constexpr int64_t kAll = 3 * 44, kEnough = 3 * (9 + 1) + 5 + 5 * 9;
  const auto bytes_of = [](int64_t full, int64_t windowed) {
    return static_cast<uint64_t>(full + 2 * windowed) * kLayerBlock;
  };
  load_again(engine, folder.path(), options);
  EXPECT_EQ(engine->options().kv_bytes, bytes_of(kAll, kEnough));
  EXPECT_EQ(engine->kv_blocks().second, kAll + kEnough);
  const std::vector<KvMemory> kinds = kv_memory(Checkpoint::open(folder.path()), options);
  ASSERT_EQ(kinds.size(), 2U);
  EXPECT_EQ(kinds[0].layers, 1);
  EXPECT_EQ(kinds[0].window, 0);
  EXPECT_EQ(kinds[0].positions, kAll * 16);
  EXPECT_EQ(kinds[1].layers, 2);
  EXPECT_EQ(kinds[1].window, 37);
  EXPECT_EQ(kinds[1].positions, kEnough * 16);
  EXPECT_EQ(kinds[1].bytes, 2 * kEnough * kLayerBlock);

  options.kv_bytes = bytes_of(100, kEnough) + kLayerBlock - 1;
  load_again(engine, folder.path(), options);
  EXPECT_EQ(engine->options().kv_bytes, bytes_of(100, kEnough));
  EXPECT_EQ(engine->options().max_context, 700);
  EXPECT_EQ(load_again(engine, folder.path(), engine->options())->kv_blocks().second, 100 + kEnough)
      << "as it was resolved";
  // Where windows would leave the other layers no more than themselves, all have the same.
  options.kv_bytes = bytes_of(kEnough, kEnough) + kLayerBlock - 1;
  load_again(engine, folder.path(), options);
  EXPECT_EQ(engine->kv_blocks().second, kEnough);
  options.kv_bytes = bytes_of(3, 3);
  load_again(engine, folder.path(), options);
  EXPECT_EQ(engine->kv_blocks().second, 3);
  EXPECT_EQ(engine->options().max_context, 48);
  // What no sequence has use for is for prefixes, in all layers.
  options.kv_bytes = bytes_of(kAll + 7, kEnough + 7) + 2 * kLayerBlock;
  load_again(engine, folder.path(), options);
  EXPECT_EQ(engine->options().kv_bytes, bytes_of(kAll + 7, kEnough + 7));
  options.kv_bytes = 3 * kLayerBlock - 1;
  const Error error = error_of([&] { Engine::load(folder.path(), options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"kv_bytes", std::to_string(3 * kLayerBlock), "one block"}));
}

// Short contexts and other paths keep all blocks.
TEST(WindowBudget, NothingIsGivenBackWhereAllFits) {
  const WindowFolder folder("gpt_oss", 37);
  EngineOptions options = window_options(16, 1, 160);
  options.kv_codecs = {"f32"};
  EXPECT_EQ(Engine::describe(folder.path(), options).options.kv_bytes, 30 * 3 * kLayerBlock);
  options.max_context = 700;
  options.kernels = KernelPath::kReference;
  auto reference = Engine::load(folder.path(), options);
  EXPECT_EQ(reference->options().kv_bytes, 132 * 3 * kLayerBlock);
  EXPECT_EQ(reference->kv_blocks().second, 132);
}

// All layers of it are within a window: a sequence goes on in memory that does not hold it.
TEST(WindowBudget, ALongContextFitsIntoAWindow) {
  const WindowFolder folder("mixtral", 37);
  EngineOptions options = window_options(16);
  options.kv_codecs = {"i16"};
  const auto all = Engine::load(folder.path(), options);
  const uint64_t block = all->options().kv_bytes / static_cast<uint64_t>(all->kv_blocks().second);
  options.kv_bytes = 14 * block;  // 9, and 5 that a step takes
  const auto engine = Engine::load(folder.path(), options);
  EXPECT_EQ(engine->kv_blocks().second, 14);
  EXPECT_EQ(engine->options().max_context, 700);
  const std::vector<int32_t> ids = prompt_ids(650, engine->summary().vocab_size);
  const Rows expected = score_whole(folder.path(), ids, {"i16"});
  EXPECT_TRUE(same_bits(expected, score(*engine, ids, 48), ids.size()));
  EXPECT_TRUE(same_bits(expected, score(*engine, ids, 5), ids.size()));
  // Even where the tokens have to be run again.
  Rows rows;
  const SequenceId sequence = engine->create_sequence();
  feed(*engine, sequence, ids, 0, 600, 48, rows);
  engine->truncate(sequence, 400);
  rows.clear();
  feed(*engine, sequence, ids, 400, ids.size(), 48, rows);
  EXPECT_TRUE(same_bits(expected, rows, ids.size() - 400));
  engine->release(sequence);
  options.kv_bytes = 13 * block;
  EXPECT_EQ(Engine::load(folder.path(), options)->options().max_context, 13 * 16);
}

TEST(WindowBudget, AStepThatFindsNoBlockIsRefused) {
  const WindowFolder folder("mixtral", 37);
  EngineOptions options = window_options(16);
  const auto all = Engine::load(folder.path(), options);
  options.kv_bytes = 14 * all->options().kv_bytes / static_cast<uint64_t>(all->kv_blocks().second);
  const auto engine = Engine::load(folder.path(), options);
  const std::vector<int32_t> ids = prompt_ids(400, engine->summary().vocab_size);
  Rows ignored;
  const SequenceId one = engine->create_sequence(), two = engine->create_sequence();
  feed(*engine, one, ids, 0, 200, 48, ignored);
  StepInput input;
  input.sequence = two;
  input.tokens = std::span(ids).first(48);
  int refusals = 0;
  for (int i = 0; i < 6; ++i) {
    const auto blocks = engine->kv_blocks();
    const int64_t length = engine->length(two);
    const StepFit fit = engine->fits({&input, 1});
    EXPECT_EQ(fit.free_blocks, blocks.first);
    if (fit.fits()) {
      engine->step({&input, 1});
      continue;
    }
    ++refusals;
    const Error error = error_of([&] { engine->step({&input, 1}); });
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
    EXPECT_TRUE(is_one_line_with(error, {"KV blocks", "free", "kv_bytes"})) << error.what();
    EXPECT_EQ(engine->kv_blocks(), blocks);
    EXPECT_EQ(engine->length(two), length);
  }
  EXPECT_GT(refusals, 0);
  engine->release(one);
  EXPECT_TRUE(engine->fits({&input, 1}).fits());
  engine->step({&input, 1});
  engine->release(two);
  EXPECT_EQ(engine->kv_blocks(), (std::pair<int64_t, int64_t>(14, 14)));
}

TEST(HostileWindows, AreAllPositionsOrAnError) {
  EngineOptions options = window_options(16);
  options.kv_codecs = {"f32"};
  for (const nlohmann::json& window : {nlohmann::json(INT64_MAX), nlohmann::json(INT32_MAX),
                                       nlohmann::json(8191), nlohmann::json(1001)}) {
    const WindowFolder folder("gpt_oss", {{"sliding_window", window}});
    const auto engine = Engine::load(folder.path(), options);
    EXPECT_EQ(engine->options().kv_bytes, 132 * 3 * kLayerBlock) << window;
    const std::vector<int32_t> ids = prompt_ids(300, engine->summary().vocab_size);
    EXPECT_TRUE(same_bits(score_whole(folder.path(), ids, {"f32"}), score(*engine, ids, 48), 300));
  }
  for (const nlohmann::json& window :
       {nlohmann::json(0), nlohmann::json(-1), nlohmann::json(1.5), nlohmann::json("37")}) {
    const WindowFolder folder("gpt_oss", {{"sliding_window", window}});
    const Error error = error_of([&] { Engine::load(folder.path(), options); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, {"config.json", "sliding_window"})) << error.what();
  }
}

}  // namespace
}  // namespace vitrine::testing
