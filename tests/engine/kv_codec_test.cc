// SPDX-License-Identifier: Apache-2.0
// Codecs of keys and values: one that a test's file registers runs a whole model, layers may have
// different ones, and what there is not is refused by its name.
#include "kv/codec.h"

#include "kernels/cpu/half.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

constexpr const char* kMixed = "keys:bf16,values:f32";  // of mixed_codec.cc

// What it should give, by other means: float32, whose keys are rounded before they are written.
void write_rounded(const kernels::KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                   const float* key, const float* value) {
  float rounded[kernels::kMaxHeadDim];
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    rounded[d] = kernels::widen_bf16(kernels::narrow_bf16(key[d]));
  }
  kernels::find_kv_kernels(kernels::portable_kernels(), "f32")
      ->write(kv, block, offset, kv_head, rounded, value);
}

const kernels::KvKernels* rounded_kernels(const kernels::CpuKernels& table) {
  static kernels::KvKernels kernels;
  kernels = {write_rounded, kernels::find_kv_kernels(table, "f32")->attend};
  return &kernels;
}

VITRINE_REGISTER_KV_CODEC((kv::CodecEntry{
    .name = "rounded_keys",
    .has_one_length = false,
    .key_bytes = [](int64_t head_dim) { return head_dim * 4; },
    .value_bytes = [](int64_t head_dim) { return head_dim * 4; },
    .cpu_kernels = rounded_kernels,
}));

VITRINE_REGISTER_KV_CODEC((kv::CodecEntry{
    .name = "of_no_machine",
    .key_bytes = [](int64_t head_dim) { return head_dim; },
    .value_bytes = [](int64_t head_dim) { return head_dim; },
    .cpu_kernels = [](const kernels::CpuKernels&) -> const kernels::KvKernels* { return nullptr; },
}));

EngineOptions options_of(std::vector<std::string> codecs, int threads = 1) {
  EngineOptions options = test_options(threads, 0);
  options.kv_codecs = std::move(codecs);
  return options;
}

Rows rows_of(const std::string& path, std::vector<std::string> codecs,
             std::span<const int32_t> ids) {
  return score(*Engine::load(path, options_of(std::move(codecs))), ids);
}

// As its past was fed, alone or beside another, forked and cut: the same bits.
void expect_invariant(Engine& engine, std::span<const int32_t> ids, const Rows& expected) {
  EXPECT_TRUE(engine.summary().invariant);
  for (const size_t chunk : {1, 7, 64}) {
    EXPECT_TRUE(same_bits(expected, score(engine, ids, chunk), ids.size())) << chunk;
  }
  Rows rows, ignored;
  const SequenceId one = engine.create_sequence();
  feed(engine, one, ids, 0, 70, 0, ignored);
  const SequenceId two = engine.fork(one);
  engine.truncate(two, 66);
  const PrefixId prefix = engine.retain(two, 65);
  feed(engine, one, ids, 0, 30, 0, ignored);
  feed(engine, two, ids, 66, ids.size(), 5, rows);
  EXPECT_TRUE(same_bits(expected, rows, ids.size() - 66)) << "forked and cut";
  rows.clear();
  const SequenceId three = engine.attach(prefix);
  feed(engine, three, ids, 65, ids.size(), 0, rows);
  EXPECT_TRUE(same_bits(expected, rows, ids.size() - 65)) << "behind a prefix";
  for (const SequenceId sequence : {one, two, three}) engine.release(sequence);
  engine.release_prefix(prefix);
}

TEST(KvCodec, OneOfAHostRunsTheShippedModel) {
  const std::string path = shipped_model();
  const auto engine = Engine::load(path, options_of({kMixed}, 2));
  EXPECT_EQ(engine->summary().kv_codec, kMixed);
  EXPECT_EQ(engine->options().kv_block_size, 64);
  EXPECT_TRUE(std::ranges::any_of(engine->plan(), [](const PlanEntry& entry) {
    return entry.kernel.ends_with("attention_keys:bf16,values:f32");
  }));
  const std::vector<int32_t> ids = prompt_ids(130, engine->summary().vocab_size);
  const Rows expected = score(*engine, ids);
  expect_invariant(*engine, ids, expected);
  EXPECT_TRUE(same_bits(rows_of(path, {"rounded_keys"}, ids), expected, ids.size()));
  for (const char* other : {"f32", "bf16", "i16"}) {
    EXPECT_FALSE(same_bits(rows_of(path, {other}, ids), expected, ids.size())) << other;
  }
  const auto wide = Engine::load(path, options_of({"f32"}));
  EXPECT_EQ(4 * engine->summary().kv_bytes, 3 * wide->summary().kv_bytes);
}

TEST(KvCodec, LayersMayHaveDifferentOnes) {
  const std::string path = oracle_folder("qwen3_moe");
  const ModelFacts config = read_model_facts(Checkpoint::open(path));
  std::vector<std::string> codecs(static_cast<size_t>(config.num_layers), "i16");
  codecs[0] = "f32";
  codecs.back() = "bf16";
  const auto engine = Engine::load(path, options_of(codecs, 2));
  EXPECT_EQ(engine->options().kv_codecs, codecs);
  std::string names;
  for (const std::string& codec : codecs) names += (names.empty() ? "" : ",") + codec;
  EXPECT_EQ(engine->summary().kv_codec, names);
  const std::vector<int32_t> ids = prompt_ids(130, engine->summary().vocab_size);
  const Rows expected = score(*engine, ids);
  expect_invariant(*engine, ids, expected);
  uint64_t bytes = 0;
  for (const std::string& codec : codecs) {
    const auto alone = Engine::load(path, options_of({codec}));
    bytes += alone->summary().kv_bytes / codecs.size();
    EXPECT_FALSE(same_bits(score(*alone, ids), expected, ids.size())) << codec;
  }
  EXPECT_EQ(engine->summary().kv_bytes, bytes);
  // The reference path keeps them so, too.
  EngineOptions reference = options_of(codecs);
  reference.kernels = KernelPath::kReference;
  const Rows other = score(*Engine::load(path, reference), ids);
  for (const auto& [position, row] : other) {
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_NEAR(row[i], expected.at(position)[i], 2e-2) << "position " << position;
    }
  }
  // Equal names are one.
  const std::vector<std::string> same(codecs.size(), "f16");
  EXPECT_EQ(Engine::load(path, options_of(same))->options().kv_codecs, std::vector{same[0]});
}

TEST(KvCodec, IsRefusedWhereAttentionAsksForMore) {
  // gpt_oss has sinks in every layer, dots1 windows in some; neither codec says that it knows them.
  for (const auto& [model, what] : {std::pair("gpt_oss", "sinks"), {"dots1", "windows"}}) {
    const std::string path = oracle_folder(model);
    const Error error = error_of([&] { Engine::load(path, options_of({kMixed})); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"kv_codecs", kMixed, what, "layer"})) << error.what();
    EXPECT_NO_THROW(Engine::load(path, options_of({"f32"})));
  }
  // A window that holds the whole context is none.
  EngineOptions options = options_of({kMixed});
  options.max_context = 8;
  EXPECT_NO_THROW(Engine::load(oracle_folder("dots1"), options));
}

TEST(KvCodec, RefusesWhatThereIsNot) {
  const std::string path = oracle_folder("qwen3_moe");
  const auto refuse = [&](const EngineOptions& options, ErrorKind kind,
                          std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { Engine::load(path, options); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  refuse(options_of({"keys:i16,values:f16"}), ErrorKind::kInvalidArgument,
         {"kv_codecs", "keys:i16,values:f16", "f32", "i16"});
  refuse(options_of({"f32", "f32", "f32", "f32", "i16", "f32", "f32"}), ErrorKind::kInvalidArgument,
         {"kv_codecs", "7 names"});
  refuse(options_of({"of_no_machine"}), ErrorKind::kUnsupported, {"of_no_machine", "kernels"});
  EngineOptions options = options_of({kMixed});
  options.kv_block_size = 32;
  refuse(options, ErrorKind::kInvalidArgument, {"kv_block_size", kMixed, "64"});
  options.kv_block_size = 64;
  options.kernels = KernelPath::kReference;
  refuse(options, ErrorKind::kUnsupported, {kMixed, "reference"});
  EXPECT_TRUE(std::ranges::is_sorted(kv_codec_names()));
  EXPECT_EQ(std::ranges::count(kv_codec_names(), "bf16"), 1);
}

}  // namespace
}  // namespace vitrine::testing
