// SPDX-License-Identifier: Apache-2.0
// Beginnings that outlive their sequence: what follows one has the bits that it has without reuse,
// and its blocks are counted.
#include "checkpoint/model_config.h"
#include "tests/engine/adapter_fixture.h"
#include "vitrine/audit_log.h"

namespace vitrine::testing {
namespace {

constexpr size_t kTokens = 150;

std::unique_ptr<Engine> load(const std::string& path, const std::string& codec, int block_size,
                             int threads) {
  EngineOptions options = test_options(threads, block_size);
  options.kv_codecs = {codec};
  return Engine::load(path, options);
}

class Reuse {
 public:
  Reuse(Engine& engine, std::span<const int32_t> ids, const Rows& expected)
      : engine_(engine),
        ids_(ids),
        expected_(expected),
        apart_(prompt_ids(50, engine.summary().vocab_size, 7)) {}

  void check(size_t length) {
    SCOPED_TRACE(::testing::Message() << "a prefix of " << length);
    const auto before = engine_.kv_blocks();
    const PrefixId prefix = make(std::min(length + 9, ids_.size()), length);
    const auto retained = engine_.kv_blocks();
    expect_tail(engine_.attach(prefix), length, 0, "the source is gone");
    EXPECT_EQ(engine_.kv_blocks(), retained);
    // A source that goes on, another way, and one that is cut within the prefix.
    const SequenceId source = engine_.attach(prefix);
    feed_apart(source);
    expect_tail(engine_.attach(prefix), length, 7, "beside one that went on");
    engine_.truncate(source, static_cast<int64_t>(length / 2));
    feed_apart(source);
    expect_tail(engine_.attach(prefix), length, 1, "beside one that was cut and went on");
    engine_.release(source);
    // All that share the last block go their own ways, in one step.
    const SequenceId one = engine_.attach(prefix), two = engine_.attach(prefix);
    const SequenceId fork = engine_.fork(two);
    expect_together(one, two, fork, length);
    // Less than the prefix, and behind the prefix's own end.
    const size_t part = length - length / 3;
    expect_tail(engine_.attach(prefix, static_cast<int64_t>(part)), part, 0, "a part of it");
    const SequenceId last = engine_.attach(prefix);
    engine_.release_prefix(prefix);
    expect_tail(last, length, 5, "the prefix is gone");
    EXPECT_EQ(engine_.kv_blocks(), before) << "blocks were lost";
  }

 private:
  /// A sequence of `fed` tokens, of which `length` are kept.
  PrefixId make(size_t fed, size_t length) {
    Rows ignored;
    const SequenceId source = engine_.create_sequence();
    if (fed > 0) feed(engine_, source, ids_, 0, fed, 33, ignored, StepInput::Rows::kNone);
    const int64_t free = engine_.kv_blocks().first;
    const PrefixId prefix = engine_.retain(source, static_cast<int64_t>(length));
    EXPECT_EQ(engine_.kv_blocks().first, free) << "it takes no block";
    const KvPrefix facts = engine_.prefix(prefix);
    EXPECT_TRUE(std::ranges::equal(facts.tokens, ids_.first(length)));
    const auto size = static_cast<size_t>(engine_.options().kv_block_size);
    EXPECT_EQ(facts.blocks, static_cast<int64_t>((length + size - 1) / size));
    engine_.truncate(source, static_cast<int64_t>(length));
    feed_apart(source);  // its last block is the prefix's, too
    engine_.release(source);
    EXPECT_EQ(engine_.kv_blocks().second - engine_.kv_blocks().first, facts.blocks);
    return prefix;
  }

  void feed_apart(SequenceId sequence) {
    Rows ignored;
    const size_t room = kTokens - static_cast<size_t>(engine_.length(sequence));
    feed(engine_, sequence, apart_, 0, std::min(room, apart_.size()), 0, ignored,
         StepInput::Rows::kNone);
  }

  void expect_tail(SequenceId sequence, size_t length, size_t chunk, const char* what) {
    Rows rows;
    EXPECT_EQ(engine_.length(sequence), static_cast<int64_t>(length));
    EXPECT_TRUE(std::ranges::equal(engine_.tokens(sequence), ids_.first(length)));
    feed(engine_, sequence, ids_, length, ids_.size(), chunk, rows);
    EXPECT_TRUE(same_bits(expected_, rows, ids_.size() - length)) << what;
    engine_.release(sequence);
  }

  void expect_together(SequenceId one, SequenceId two, SequenceId fork, size_t length) {
    StepInput inputs[3];
    for (StepInput& input : inputs) input.rows = StepInput::Rows::kAll;
    inputs[0].sequence = one;
    inputs[1].sequence = fork;
    inputs[2].sequence = two;
    inputs[0].tokens = inputs[2].tokens = ids_.subspan(length);
    inputs[1].tokens = std::span(apart_).first(10);
    Rows first, second;
    const std::span<const StepOutput> outputs = engine_.step(inputs);
    keep_rows(outputs, one, first);
    keep_rows(outputs, two, second);
    EXPECT_TRUE(same_bits(expected_, first, ids_.size() - length)) << "together";
    EXPECT_TRUE(same_bits(expected_, second, ids_.size() - length)) << "together, the last one";
    for (const SequenceId sequence : {one, two, fork}) engine_.release(sequence);
  }

  Engine& engine_;
  std::span<const int32_t> ids_;
  const Rows& expected_;
  std::vector<int32_t> apart_;
};

TEST(Prefix, WhatFollowsHasTheBitsThatItHasWithoutReuse) {
  const std::string path = oracle_folder("qwen3_moe");
  for (const std::string codec : {"f32", "f16", "bf16", "i16"}) {
    SCOPED_TRACE(codec);
    auto plain = load(path, codec, 64, 1);
    const std::vector<int32_t> ids = prompt_ids(kTokens - 10, plain->summary().vocab_size);
    const Rows expected = score(*plain, ids);
    for (const auto& [block_size, threads] : std::vector<std::pair<int, int>>{{16, 2}, {64, 1}}) {
      SCOPED_TRACE(::testing::Message() << "blocks of " << block_size);
      auto engine = load(path, codec, block_size, threads);
      Reuse reuse(*engine, ids, expected);
      for (const size_t length : {0, 1, 15, 16, 17, 47, 48, 63, 64, 65, 96, 128, 130}) {
        reuse.check(length);
      }
    }
  }
}

// A prefix belongs to the adapter that made it.
TEST(Prefix, StaysUnderItsAdapter) {
  const TemporaryFolder folder;
  const std::string path = oracle_folder("qwen3_moe");
  const ModelConfig config = parse_model_config(Checkpoint::open(path));
  EngineOptions options = test_options(1, 16);
  for (uint32_t i = 0; i < 2; ++i) {
    options.adapters.push_back(folder / ("adapter" + std::to_string(i)));
    write_adapter(options.adapters[i], adapter_config(4, 8),
                  adapter_tensors(attention_modules(config), 4, 20 + i));
  }
  auto engine = Engine::load(path, options);
  const std::vector<int32_t> ids = prompt_ids(60, 256);
  std::vector<Rows> found;
  for (const int adapter : {-1, 0, 1}) {
    Rows whole, tail;
    const SequenceId source = engine->create_sequence(adapter);
    feed(*engine, source, ids, 0, ids.size(), 0, whole);
    const PrefixId prefix = engine->retain(source, 41);
    engine->release(source);
    EXPECT_EQ(engine->prefix(prefix).adapter, adapter);
    const SequenceId sequence = engine->attach(prefix);
    feed(*engine, sequence, ids, 41, ids.size(), 4, tail);
    EXPECT_TRUE(same_bits(whole, tail, ids.size() - 41)) << "adapter " << adapter;
    for (const Rows& other : found) EXPECT_FALSE(same_bits(other, tail, ids.size() - 41));
    found.push_back(whole);
    engine->release(sequence);
    engine->release_prefix(prefix);
  }
  EXPECT_EQ(engine->kv_blocks().first, engine->kv_blocks().second);
}

TEST(Prefix, RefusesWhatIsNotThere) {
  EngineOptions options = test_options(1, 16);
  options.max_sequences = 2;
  auto engine = Engine::load(oracle_folder("llama"), options);
  const std::vector<int32_t> ids = prompt_ids(20, engine->summary().vocab_size);
  Rows ignored;
  const SequenceId sequence = engine->create_sequence();
  feed(*engine, sequence, ids, 0, 20, 0, ignored);
  for (const int64_t length : {-1, 21}) {
    const Error error = error_of([&] { engine->retain(sequence, length); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {"prefix", "0 to 20"})) << error.what();
  }
  const PrefixId prefix = engine->retain(sequence, 18);
  for (const int64_t length : {-1, 19}) {
    const Error error = error_of([&] { engine->attach(prefix, length); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {"prefix", "0 to 18"})) << error.what();
  }
  // A prefix is no sequence, nor the other way round.
  EXPECT_EQ(error_of([&] { engine->length(prefix); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_of([&] { engine->attach(sequence); }).kind(), ErrorKind::kInvalidArgument);
  const SequenceId second = engine->attach(prefix);
  const Error full = error_of([&] { engine->attach(prefix); });
  EXPECT_EQ(full.kind(), ErrorKind::kOutOfMemory);
  EXPECT_TRUE(is_one_line_with(full, {"max_sequences"})) << full.what();
  engine->release_prefix(prefix);
  EXPECT_EQ(error_of([&] { engine->release_prefix(prefix); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error_of([&] { engine->prefix(prefix); }).kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(engine->length(second), 18);
}

// A draft of which only the beginning was right.
TEST(Prefix, KeepsTheBeginningOfAStep) {
  auto engine = load(oracle_folder("qwen3_moe"), "i16", 16, 2);
  const std::vector<int32_t> ids = prompt_ids(60, engine->summary().vocab_size);
  const std::vector<int32_t> wrong = prompt_ids(60, engine->summary().vocab_size, 3);
  const Rows expected = score(*engine, ids);
  Rows rows, ignored;
  const SequenceId sequence = engine->create_sequence();
  feed(*engine, sequence, ids, 0, 13, 0, rows);
  for (size_t at = 13, turn = 0; at < ids.size(); ++turn) {
    const size_t right = std::min(turn % 6, ids.size() - at);  // across block borders, too
    std::vector<int32_t> draft(ids.begin() + static_cast<ptrdiff_t>(at),
                               ids.begin() + static_cast<ptrdiff_t>(at + right));
    draft.insert(draft.end(), wrong.begin(), wrong.begin() + 7);
    feed(*engine, sequence, draft, 0, draft.size(), 0, ignored);
    engine->keep(sequence, static_cast<int64_t>(right));
    EXPECT_EQ(engine->length(sequence), static_cast<int64_t>(at + right));
    for (size_t i = at; i < at + right; ++i) {
      rows[static_cast<int64_t>(i)] = ignored[static_cast<int64_t>(i)];
    }
    at += right;
  }
  EXPECT_TRUE(same_bits(expected, rows, ids.size()));
  feed(*engine, sequence, wrong, 0, 4, 0, ignored);
  for (const int64_t count : {-1, 5}) {
    const Error error = error_of([&] { engine->keep(sequence, count); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {"keep", "0 to 4"})) << error.what();
  }
  engine->keep(sequence, 3);
  engine->keep(sequence, 3);  // nothing more happens
  EXPECT_EQ(engine->length(sequence), 63);
  engine->truncate(sequence, 40);
  EXPECT_EQ(error_of([&] { engine->keep(sequence, 1); }).kind(), ErrorKind::kInvalidArgument);
  const SequenceId fork = engine->fork(sequence);
  EXPECT_EQ(error_of([&] { engine->keep(fork, 1); }).kind(), ErrorKind::kInvalidArgument);
}

// In a log a prefix is a fork that no step touches, and what begins with it is a fork of that.
TEST(Prefix, IsAccountedForInALog) {
  const TemporaryFolder folder;
  EngineOptions options = test_options(1, 16);
  options.audit_mode = AuditMode::kDeferred;
  auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  const std::vector<int32_t> ids = prompt_ids(60, 256);
  LogHeader header;
  header.vocab_size = engine->summary().vocab_size;
  VtrLog log(folder / "run.vtr", header);
  engine->set_audit_sink(&log.sink());
  Rows ignored;
  const SequenceId source = engine->create_sequence();
  feed(*engine, source, ids, 0, 30, 0, ignored);
  const PrefixId prefix = engine->retain(source, 20);  // 30 replayed, 10 discarded
  engine->truncate(source, 25);                        // 5 discarded
  engine->release(source);
  const SequenceId one = engine->attach(prefix);     // 20 replayed
  const SequenceId two = engine->attach(prefix, 8);  // 20 replayed, 12 discarded
  feed(*engine, one, ids, 20, 27, 0, ignored);       // 7 captured, 3 discarded
  engine->keep(one, 4);
  engine->release_prefix(prefix);
  feed(*engine, two, ids, 8, 10, 0, ignored);  // 2 captured
  engine->release(one);
  engine->release(two);
  engine->set_audit_sink(nullptr);
  log.finish("length");
  const VtrReport report = verify_vtr(folder / "run.vtr");
  ASSERT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  const VtrAccount& positions = report.counts.positions;
  EXPECT_EQ(positions.captured, 25u + 4 + 2);
  EXPECT_EQ(positions.replayed, 20u + 20 + 8);
  EXPECT_EQ(positions.discarded, 10u + 5 + 12 + 3);
  EXPECT_EQ(positions.num_lost(), 0u);
  EXPECT_EQ(report.counts.sequences, 4u);
}

}  // namespace
}  // namespace vitrine::testing
