// SPDX-License-Identifier: Apache-2.0
// Experts that are read when a step needs them: the same bits as with all of them in memory, in any
// size of the cache that a layer fits in, and errors that leave the engine usable.
#include <filesystem>
#include <fstream>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

/// One expert of the small model: three matrices of 256 x 256.
uint64_t slot_bytes(const std::string& path, EngineOptions options) {
  options.expert_cache_bytes = uint64_t{1} << 30;
  return Engine::load(path, options)->expert_cache().slot_bytes;
}

class ExpertCacheOfBlocks : public ::testing::TestWithParam<ModelVariant> {};

TEST_P(ExpertCacheOfBlocks, GivesTheSameBits) {
  const VariantFolder folder(GetParam());
  auto whole = Engine::load(folder.path(), test_options(2));
  EXPECT_EQ(whole->expert_cache().slots, 0);
  const std::vector<int32_t> ids = prompt_ids(60, whole->summary().vocab_size);
  const Rows expected = score(*whole, ids);
  for (const int threads : {1, 3}) {
    EngineOptions options = test_options(threads);
    options.max_step_tokens = options.max_logit_rows = 1;  // two of three experts are enough
    const uint64_t bytes = slot_bytes(folder.path(), options);
    uint64_t used = 0;  // experts that this text routes to
    for (const uint64_t slots : {3, 2}) {
      options.expert_cache_bytes = slots * bytes + bytes / 2;
      auto engine = Engine::load(folder.path(), options);
      EXPECT_EQ(engine->summary().num_parameters, whole->summary().num_parameters);
      EXPECT_TRUE(same_bits(expected, score(*engine, ids, 1), ids.size())) << slots << " slots";
      const ExpertCacheStats stats = engine->expert_cache();
      EXPECT_EQ(stats.slots, static_cast<int64_t>(slots));
      EXPECT_EQ(stats.experts, 3);
      EXPECT_EQ(stats.hits + stats.misses, 2 * ids.size());
      if (slots == 3) {
        used = stats.misses;
        EXPECT_TRUE(used == 2 || used == 3) << used;
      } else {
        EXPECT_EQ(stats.misses > 3, used == 3) << stats.misses;
        EXPECT_GT(stats.hits, 0u);
      }
      EXPECT_EQ(stats.bytes_read % stats.misses, 0u);
      EXPECT_EQ(stats.guesses, 0u);  // there is one layer
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertCacheOfBlocks, ::testing::ValuesIn(block_variants()),
                         variant_name);

// Layers share the cache: what one reads another one may push out.
TEST(ExpertCache, OfSeveralLayersOfFloats) {
  const std::string path = oracle_folder("qwen3_moe");
  auto whole = Engine::load(path, test_options());
  const std::vector<int32_t> ids = prompt_ids(50, whole->summary().vocab_size);
  const Rows expected = score(*whole, ids);
  EngineOptions options = test_options(2);
  const uint64_t bytes = slot_bytes(path, options);
  for (const uint64_t slots : {8, 11, 24}) {
    options.expert_cache_bytes = slots * bytes;
    options.expert_prefetch = true;
    auto engine = Engine::load(path, options);
    EXPECT_LT(engine->summary().weight_bytes, whole->summary().weight_bytes + slots * 4096);
    EXPECT_TRUE(same_bits(expected, score(*engine, ids), ids.size())) << slots;
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, 7), ids.size())) << slots;
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, 1), ids.size())) << slots;
    const ExpertCacheStats stats = engine->expert_cache();
    EXPECT_GT(stats.guesses, 0u);
    EXPECT_LE(stats.right_guesses, stats.guesses);
    EXPECT_GT(stats.right_guesses, 0u);
    EXPECT_LE(stats.read_ahead_used, stats.read_ahead);
    options.expert_prefetch = false;
    auto plain = Engine::load(path, options);
    EXPECT_TRUE(same_bits(expected, score(*plain, ids, 1), ids.size())) << slots;
    EXPECT_EQ(plain->expert_cache().read_ahead, 0u);
  }
}

TEST(ExpertCache, TooSmallForALayer) {
  const std::string path = oracle_folder("qwen3_moe");
  EngineOptions options = test_options();
  options.expert_cache_bytes = 8 * slot_bytes(path, options) - 1;
  const Error error = error_of([&] { Engine::load(path, options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(
      error, {"expert_cache_bytes", "--expert-cache", "hold 7", "8", "max_step_tokens"}))
      << error.what();
  options.kernels = KernelPath::kReference;
  EXPECT_EQ(error_of([&] { Engine::load(path, options); }).kind(), ErrorKind::kUnsupported);
}

// Folders that `vitrine quantize` writes, of every method that needs no texts.
TEST(ExpertCache, OfQuantizedFolders) {
  for (const QuantMethod& method : quant_methods()) {
    if (method.activations == ActivationUse::kStatic) continue;
    const VariantFolder folder({"qwen3_moe", method.name, 32});
    auto whole = Engine::load(folder.path(), test_options());
    const std::vector<int32_t> ids = prompt_ids(50, whole->summary().vocab_size);
    const Rows expected = score(*whole, ids);
    EngineOptions options = test_options(2);
    const uint64_t bytes = slot_bytes(folder.path(), options);
    for (const uint64_t slots : {8, 11, 24}) {
      options.expert_cache_bytes = slots * bytes;
      options.expert_prefetch = slots != 11;
      auto engine = Engine::load(folder.path(), options);
      EXPECT_EQ(engine->summary().num_parameters, whole->summary().num_parameters);
      EXPECT_TRUE(same_bits(expected, score(*engine, ids), ids.size())) << method.name << slots;
      EXPECT_TRUE(same_bits(expected, score(*engine, ids, 7), ids.size())) << method.name << slots;
      const ExpertCacheStats stats = engine->expert_cache();
      EXPECT_EQ(stats.slots, static_cast<int64_t>(slots));
      EXPECT_GT(stats.misses, 0u);
      EXPECT_EQ(stats.bytes_read % stats.misses, 0u);
    }
  }
}

// A scale that is no number comes up when the expert is read: that step fails, and no other.
TEST(ExpertCache, ABadScaleOfAFolder) {
  const VariantFolder folder({"qwen3_moe", "int4-asymmetric", 32});
  const Checkpoint checkpoint = Checkpoint::open(folder.path());
  const TensorInfo& info =
      checkpoint.require("model.layers.2.mlp.experts.3.down_proj.weight_scale");
  ASSERT_EQ(info.dtype, DType::kBF16);
  overwrite(folder.path(), info, 0, "\xff\x7f");
  EngineOptions options = test_options(2);
  options.expert_cache_bytes = uint64_t{1} << 24;
  auto engine = Engine::load(folder.path(), options);
  const std::vector<int32_t> ids = prompt_ids(60, engine->summary().vocab_size);
  const Error error = error_of([&] { score(*engine, ids); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {folder.path(), info.name, "row 0", "expected"}))
      << error.what();
}

// A file that is cut while it is in use: the step fails, and the next one with the file whole.
TEST(ExpertCache, AFileThatIsCut) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.gguf";
  const std::string bytes = BlockModel("Q4_K").bytes();
  write_bytes(path, bytes);
  EngineOptions options = test_options(2);
  options.max_step_tokens = options.max_logit_rows = 1;
  options.expert_cache_bytes = 2 * slot_bytes(path, options);
  auto engine = Engine::load(path, options);
  const std::vector<int32_t> ids = prompt_ids(40, engine->summary().vocab_size);
  const SequenceId sequence = engine->create_sequence();
  std::filesystem::resize_file(path, bytes.size() / 4);
  Rows rows;
  const Error error = error_of([&] { feed(*engine, sequence, ids, 0, ids.size(), 1, rows); });
  EXPECT_EQ(error.kind(), ErrorKind::kIo);
  EXPECT_TRUE(is_one_line_with(error, {path})) << error.what();
  const auto done = static_cast<size_t>(engine->length(sequence));
  EXPECT_LT(done, ids.size());
  // Whole again it is another file, for all that the engine knows.
  std::ofstream(path, std::ios::binary | std::ios::in | std::ios::out) << bytes;
  const Error again = error_of([&] { feed(*engine, sequence, ids, done, ids.size(), 1, rows); });
  EXPECT_TRUE(is_one_line_with(again, {path, "written to"})) << again.what();
  EXPECT_EQ(static_cast<size_t>(engine->length(sequence)), done);
}

}  // namespace
}  // namespace vitrine::testing
