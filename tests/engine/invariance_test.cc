// SPDX-License-Identifier: Apache-2.0
// One token, one result: on the fused path a row of logits has the same bits however its sequence
// came to be. Rows are compared whole, with memcmp.
#include "tests/engine/block_model.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

constexpr int kPromptTokens = 77;  // a multiple of no block size

struct Setting {
  int threads;
  int kv_block_size;
  AuditMode mode;
  AuditLevel level;
  std::vector<std::string> kv_codecs = {};
};

std::unique_ptr<Engine> load(const std::string& path, const Setting& setting) {
  EngineOptions options = test_options(setting.threads, setting.kv_block_size);
  options.audit_mode = setting.mode;
  options.audit_level = setting.level;
  options.kv_codecs = setting.kv_codecs;
  auto engine = Engine::load(path, options);
  EXPECT_TRUE(engine->summary().invariant);
  EXPECT_EQ(engine->summary().threads, setting.threads);
  return engine;
}

class Patterns {
 public:
  Patterns(Engine& engine, std::span<const int32_t> ids, const Rows& expected)
      : engine_(engine), ids_(ids), expected_(expected) {}

  void check_all() {
    const auto before = engine_.kv_blocks();
    for (size_t chunk : {0, 1, 7, 16}) {
      EXPECT_TRUE(same_bits(expected_, score(engine_, ids_, chunk), ids_.size()))
          << "in chunks of " << chunk;
    }
    check_last_rows();
    check_batch(0);
    check_batch(5);
    check_fork();
    check_truncate();
    check_shared_block();
    EXPECT_EQ(engine_.kv_blocks(), before) << "blocks were lost";
  }

  // A prefill that asks for its last row alone, then decoding.
  void check_last_rows() {
    Rows rows;
    const SequenceId sequence = engine_.create_sequence();
    feed(engine_, sequence, ids_, 0, 20, 0, rows, StepInput::Rows::kNone);
    EXPECT_TRUE(rows.empty());
    feed(engine_, sequence, ids_, 20, ids_.size() - 5, 0, rows, StepInput::Rows::kLast);
    feed(engine_, sequence, ids_, ids_.size() - 5, ids_.size(), 1, rows, StepInput::Rows::kLast);
    EXPECT_TRUE(same_bits(expected_, rows, 6)) << "last rows only";
    engine_.release(sequence);
  }

  // Five sequences of different lengths in each step; ours stands in the middle.
  void check_batch(size_t chunk) {
    const int vocab = engine_.summary().vocab_size;
    std::vector<std::vector<int32_t>> others;
    for (int length : {1, 33, 64, 50}) {
      others.push_back(prompt_ids(length, vocab, static_cast<uint32_t>(length)));
    }
    std::vector<SequenceId> sequences;
    for (int i = 0; i < 5; ++i) sequences.push_back(engine_.create_sequence());
    std::vector<size_t> fed(5, 0);
    Rows rows;
    for (size_t step = 0; fed[2] < ids_.size(); ++step) {
      std::vector<StepInput> inputs;
      for (size_t i = 0; i < 5; ++i) {
        const std::span<const int32_t> ids =
            i == 2 ? ids_ : std::span<const int32_t>(others[i < 2 ? i : i - 1]);
        size_t count = chunk == 0 ? ids.size() : i == 2 ? chunk : chunk + i + step % 3;
        count = std::min(count, ids.size() - fed[i]);
        if (count == 0) continue;
        StepInput input;
        input.sequence = sequences[i];
        input.tokens = ids.subspan(fed[i], count);
        input.rows = i == 1 ? StepInput::Rows::kLast : StepInput::Rows::kAll;
        inputs.push_back(input);
        fed[i] += count;
      }
      keep_rows(engine_.step(inputs), sequences[2], rows);
    }
    EXPECT_TRUE(same_bits(expected_, rows, ids_.size())) << "in a batch, chunks of " << chunk;
    for (SequenceId sequence : sequences) engine_.release(sequence);
  }

  // A fork at a partial block (41) or at a block border (48 for blocks of 16); both go on, apart.
  void check_fork() {
    const int vocab = engine_.summary().vocab_size;
    const std::vector<int32_t> apart = prompt_ids(30, vocab, 9);
    for (size_t at : {41, 48}) {
      Rows parent, copy, other, ignored;
      const SequenceId first = engine_.create_sequence();
      feed(engine_, first, ids_, 0, at, 0, parent);
      const SequenceId second = engine_.fork(first);
      EXPECT_EQ(engine_.length(second), static_cast<int64_t>(at));
      feed(engine_, first, apart, 0, apart.size(), 3, ignored);
      feed(engine_, second, ids_, at, ids_.size(), 6, copy);
      EXPECT_TRUE(same_bits(expected_, copy, ids_.size() - at)) << "fork at " << at;
      // The parent forgets what it did apart and takes the same way; a fork of it outlives it.
      engine_.truncate(first, static_cast<int64_t>(at));
      const SequenceId third = engine_.fork(first);
      feed(engine_, first, ids_, at, ids_.size(), 0, parent);
      EXPECT_TRUE(same_bits(expected_, parent, ids_.size())) << "parent of a fork at " << at;
      engine_.release(first);
      engine_.release(second);
      feed(engine_, third, ids_, at, ids_.size(), 2, other);
      EXPECT_TRUE(same_bits(expected_, other, ids_.size() - at)) << "orphan of a fork at " << at;
      engine_.release(third);
    }
  }

  void check_truncate() {
    const std::vector<int32_t> apart = prompt_ids(40, engine_.summary().vocab_size, 5);
    for (size_t keep : {0, 9, 32, 33}) {
      Rows rows, ignored;
      const SequenceId sequence = engine_.create_sequence();
      feed(engine_, sequence, ids_, 0, keep == 0 ? 5 : keep, 0, ignored);
      feed(engine_, sequence, apart, 0, apart.size(), 0, ignored);
      engine_.truncate(sequence, static_cast<int64_t>(keep));
      EXPECT_EQ(engine_.length(sequence), static_cast<int64_t>(keep));
      feed(engine_, sequence, ids_, keep, ids_.size(), 11, rows);
      EXPECT_TRUE(same_bits(expected_, rows, ids_.size() - keep)) << "truncated to " << keep;
      engine_.release(sequence);
    }
  }

  // Two sequences share full blocks; both are truncated into one of them and step together.
  void check_shared_block() {
    const auto full = static_cast<size_t>(std::min(64, engine_.options().kv_block_size));
    const std::vector<int32_t> apart = prompt_ids(12, engine_.summary().vocab_size, 3);
    Rows ignored, one, two;
    const SequenceId first = engine_.create_sequence();
    feed(engine_, first, ids_, 0, full, 0, ignored);
    const SequenceId second = engine_.fork(first);
    const size_t keep = full - 6;
    engine_.truncate(second, static_cast<int64_t>(keep));
    feed(engine_, second, apart, 0, apart.size(), 0, ignored);  // writes beside the shared block
    feed(engine_, first, ids_, full, ids_.size(), 0, one);
    EXPECT_TRUE(same_bits(expected_, one, ids_.size() - full)) << "a sharer wrote into our block";
    const SequenceId third = engine_.fork(first);
    for (SequenceId sequence : {first, second, third}) {
      engine_.truncate(sequence, static_cast<int64_t>(keep));
    }
    one.clear();
    StepInput inputs[3];
    inputs[0].sequence = third;
    inputs[0].tokens = apart;
    inputs[1].sequence = first;
    inputs[2].sequence = second;
    inputs[1].tokens = inputs[2].tokens = ids_.subspan(keep);
    inputs[1].rows = inputs[2].rows = StepInput::Rows::kAll;
    const std::span<const StepOutput> outputs = engine_.step(inputs);
    keep_rows(outputs, first, one);
    keep_rows(outputs, second, two);
    EXPECT_TRUE(same_bits(expected_, one, ids_.size() - keep)) << "truncated into a shared block";
    EXPECT_TRUE(same_bits(expected_, two, ids_.size() - keep)) << "truncated into its own copy";
    for (SequenceId sequence : {first, second, third}) engine_.release(sequence);
  }

 private:
  Engine& engine_;
  std::span<const int32_t> ids_;
  const Rows& expected_;
};

class Invariance : public ::testing::TestWithParam<ModelVariant> {
 protected:
  Invariance() : folder_(GetParam()) {
    auto engine = load(folder_.path(), {1, 64, AuditMode::kNone, AuditLevel::kStandard});
    ids_ = prompt_ids(kPromptTokens, engine->summary().vocab_size);
    expected_ = score(*engine, ids_);
    EXPECT_EQ(expected_.size(), ids_.size());
  }

  void check(const Setting& setting) {
    SCOPED_TRACE(::testing::Message()
                 << setting.threads << " threads, blocks of " << setting.kv_block_size << ", audit "
                 << static_cast<int>(setting.mode) << "/" << static_cast<int>(setting.level));
    auto engine = load(folder_.path(), setting);
    VectorSink sink;
    engine->set_audit_sink(&sink);
    Patterns(*engine, ids_, expected_).check_all();
    EXPECT_EQ(sink.records().empty(), setting.mode == AuditMode::kNone);
  }

  VariantFolder folder_;
  std::vector<int32_t> ids_;
  Rows expected_;
};

TEST_P(Invariance, OfBatchChunksForksThreadsBlocksAndAudit) {
  check({1, 64, AuditMode::kNone, AuditLevel::kStandard});
  check({2, 16, AuditMode::kDeferred, AuditLevel::kFull});
  if (GetParam().name != "shipped" && GetParam().name != "qwen3_moe") {
    check({3, 128, AuditMode::kNaive, AuditLevel::kStandard});
    return;
  }
  check({1, 16, AuditMode::kNaive, AuditLevel::kFull});
  check({2, 32, AuditMode::kDeferred, AuditLevel::kStandard});
  check({3, 32, AuditMode::kNone, AuditLevel::kStandard});
  check({3, 128, AuditMode::kDeferred, AuditLevel::kFull});
  check({2, 128, AuditMode::kNaive, AuditLevel::kStandard});
}

// Keys and values in 16 bits give other rows, which are as invariant.
TEST(InvarianceOfKvTypes, OfBatchChunksForksThreadsAndBlocks) {
  Rows by_type[3];
  const std::string codecs[] = {"f16", "bf16", "i16"};
  for (size_t i = 0; i < std::size(codecs); ++i) {
    const std::string& codec = codecs[i];
    const std::string path = oracle_folder("qwen3_moe");
    const Setting one{1, 64, AuditMode::kNone, AuditLevel::kStandard, {codec}};
    auto engine = load(path, one);
    const std::vector<int32_t> ids = prompt_ids(kPromptTokens, engine->summary().vocab_size);
    Rows& expected = by_type[i];
    expected = score(*engine, ids);
    const uint64_t bytes = engine->summary().kv_bytes;
    EXPECT_TRUE(std::ranges::any_of(engine->plan(), [&](const PlanEntry& entry) {
      return entry.kernel.ends_with("attention_" + codec);
    }));
    for (Setting setting : {Setting{1, 16, AuditMode::kDeferred, AuditLevel::kFull},
                            Setting{3, 32, AuditMode::kNone, AuditLevel::kStandard}}) {
      auto wide = load(path, setting);
      setting.kv_codecs = {codec};
      engine = load(path, setting);
      const uint64_t scales =
          codec == "i16" ? 2 * wide->summary().kv_bytes / wide->summary().head_dim : 0;
      EXPECT_EQ(2 * engine->summary().kv_bytes, wide->summary().kv_bytes + scales);
      Patterns(*engine, ids, expected).check_all();
      EXPECT_FALSE(same_bits(expected, score(*wide, ids), ids.size()));
    }
    EXPECT_GT(bytes, 0u);
  }
  EXPECT_FALSE(same_bits(by_type[0], by_type[1], kPromptTokens));
  EXPECT_FALSE(same_bits(by_type[0], by_type[2], kPromptTokens));
}

// One key of 48 elements a position, and no value beside it.
TEST(InvarianceOfLatentKeys, OfBatchChunksForksThreadsAndBlocks) {
  const std::string path = oracle_folder("deepseek_v3");
  Rows before;
  for (const char* codec : {"f32", "f16", "bf16", "i16"}) {
    SCOPED_TRACE(codec);
    auto engine = load(path, {1, 64, AuditMode::kNone, AuditLevel::kStandard, {codec}});
    const std::vector<int32_t> ids = prompt_ids(kPromptTokens, engine->summary().vocab_size);
    const Rows expected = score(*engine, ids);
    EXPECT_FALSE(same_bits(before, expected, ids.size()));
    before = expected;
    const uint64_t key_bytes = codec[0] == 'f' && codec[1] == '3' ? 192
                               : codec[0] == 'i'                  ? 100
                                                                  : 96;
    EXPECT_EQ(engine->summary().kv_bytes, 3 * key_bytes * 8 * 192);  // layers, 8 contexts
    for (const Setting& setting :
         {Setting{2, 16, AuditMode::kDeferred, AuditLevel::kFull, {codec}},
          Setting{3, 32, AuditMode::kNone, AuditLevel::kStandard, {codec}}}) {
      engine = load(path, setting);
      Patterns(*engine, ids, expected).check_all();
    }
  }
}

TEST(InvarianceOfLatentKeys, AreRefusedWithExtentsOfOtherHeads) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.gguf";
  for (const bool as_floats : {false, true}) {
    write_bytes(path, LatentBlockModel("Q4_0", 5).bytes(as_floats, /*has_swapped_halves=*/true));
    const Error error = error_of([&] { Engine::load(path, test_options()); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_NE(std::string_view(error.what()).find("attn_k_b.weight"), std::string_view::npos)
        << error.what();
  }
}

// Halves of kv_b that stay in the file's blocks have the bits of the floats that they mean, alone
// and beside others, with heads that fill the kernels' lanes and with some that do not.
TEST(InvarianceOfLatentKeys, OfTheFormOfTheirMatrix) {
  const TemporaryFolder folder;
  const std::string blocks = folder / "blocks.gguf", floats = folder / "floats.gguf";
  for (const auto& [heads, format] : {std::pair{5u, "Q5_1"}, {16u, "Q8_0"}, {20u, "Q4_0"}}) {
    SCOPED_TRACE(std::string(format) + ", heads: " + std::to_string(heads));
    write_bytes(blocks, LatentBlockModel(format, heads).bytes());
    write_bytes(floats, LatentBlockModel(format, heads).bytes(/*halves_as_floats=*/true));
    const Setting alone{1, 64, AuditMode::kNone, AuditLevel::kStandard};
    const Setting together{2, 16, AuditMode::kNone, AuditLevel::kStandard};
    auto engine = load(floats, alone);
    const uint64_t float_bytes = engine->summary().weight_bytes;
    const std::vector<int32_t> ids = prompt_ids(kPromptTokens, engine->summary().vocab_size);
    const Rows expected = score(*engine, ids);
    engine = load(blocks, alone);
    EXPECT_LT(engine->summary().weight_bytes, float_bytes);
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, 1), ids.size()));
    engine = load(blocks, together);
    Patterns(*engine, ids, expected).check_all();
    const ScopedEnvironment forced("VITRINE_CPU_ISA", "portable");
    engine = load(blocks, together);
    EXPECT_TRUE(same_bits(expected, score(*engine, ids, 6), ids.size()));
  }
}

// The rows would differ if the comparison saw nothing: another prompt, another result.
TEST_P(Invariance, ComparisonSeesADifference) {
  auto engine = load(folder_.path(), {1, 64, AuditMode::kNone, AuditLevel::kStandard});
  std::vector<int32_t> other = ids_;
  other[3] = (other[3] + 1) % engine->summary().vocab_size;
  const Rows rows = score(*engine, other);
  EXPECT_FALSE(same_bits(expected_, rows, ids_.size()));
  for (int64_t position : {0, 1, 2}) EXPECT_EQ(rows.at(position), expected_.at(position));
  EXPECT_NE(rows.at(76), expected_.at(76));
}

TEST_P(Invariance, OfTheInstructionSet) {
  std::vector<int32_t> ids = ids_;
  ids.resize(24);
  int ran = 0;
  for (const char* isa : {"portable", "avx2", "avx2_vnni", "avx512", "avx512_amx"}) {
    SCOPED_TRACE(isa);
    const ScopedEnvironment forced("VITRINE_CPU_ISA", isa);
    std::unique_ptr<Engine> engine;
    try {
      engine = load(folder_.path(), {1, 16, AuditMode::kNone, AuditLevel::kStandard});
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnavailable);
      EXPECT_STRNE(isa, "portable");
      EXPECT_TRUE(is_one_line_with(error, {"VITRINE_CPU_ISA", isa, "lacks"})) << error.what();
      continue;
    }
    ++ran;
    EXPECT_EQ(engine->summary().isa, isa);
    for (const PlanEntry& entry : engine->plan()) {
      EXPECT_TRUE(entry.kernel.starts_with(std::string("cpu.") + isa + ".")) << entry.kernel;
    }
    EXPECT_TRUE(same_bits(expected_, score(*engine, ids, 5), ids.size()));
    EXPECT_TRUE(same_bits(expected_, score(*engine, ids), ids.size()));
  }
  EXPECT_GE(ran, 1);
}

std::vector<ModelVariant> variants() {
  std::vector<ModelVariant> all;
  for (const std::string& name : oracle_names()) {
    all.push_back({name, "", 0});
    all.push_back({name, "int4", name == "qwen2_moe" || name == "olmoe" ? 64 : 32});
    if (name == "qwen3_moe" || name == "granitemoe" || name == "qwen3_moe_sparse2") {
      all.push_back({name, "int8", name == "qwen3_moe" ? 32 : 64});
    }
  }
  all.push_back({"qwen3_moe", "int4-asymmetric", 32});
  all.push_back({"qwen3_moe", "int3", 32});
  all.push_back({"granitemoe", "int3-asymmetric", 64});
  all.push_back({"qwen3_moe", "fp8", 32});
  all.push_back({"deepseek_v3", "fp8", 32});  // as it is published
  all.push_back({"qwen2_moe", "int8-asymmetric", 64});
  all.push_back({"shipped", "", 0});
  for (const ModelVariant& blocks : block_variants()) all.push_back(blocks);
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, Invariance, ::testing::ValuesIn(variants()), variant_name);

TEST(InstructionSet, RefusesAnUnknownName) {
  const ScopedEnvironment forced("VITRINE_CPU_ISA", "avx1024");
  const Error error = error_of([] { Engine::load(oracle_folder("llama"), test_options()); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"VITRINE_CPU_ISA", "avx1024", "portable"})) << error.what();
}

// Each of many active experts is a piece or two; each of few is divided among the threads.
TEST(Invariance, ManyExperts) {
  const TemporaryFolder folder;
  const std::string path = folder / "model.gguf";
  write_bytes(path, BlockModel("Q4_0", 200).bytes());
  auto alone = Engine::load(path, test_options(1));
  const std::vector<int32_t> ids = prompt_ids(157, alone->summary().vocab_size);
  const Rows expected = score(*alone, ids, 1);
  for (const int threads : {1, 2, 3}) {
    auto engine = Engine::load(path, test_options(threads));
    for (const size_t chunk : {0, 31}) {
      EXPECT_TRUE(same_bits(expected, score(*engine, ids, chunk), ids.size()))
          << threads << " threads, chunks of " << chunk;
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
