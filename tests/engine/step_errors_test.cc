// SPDX-License-Identifier: Apache-2.0
// What step() refuses, it refuses whole: the engine is as before and goes on working.
#include "tests/engine/engine_fixture.h"
#include "vitrine/audit_stream.h"

namespace vitrine::testing {
namespace {

class StepErrors : public ::testing::TestWithParam<KernelPath> {
 protected:
  StepErrors() {
    EngineOptions options = test_options(1, 16);
    options.kernels = GetParam();
    options.max_context = 64;
    options.max_sequences = 2;
    options.max_step_tokens = 40;
    options.max_logit_rows = 24;
    const std::string path = oracle_folder("qwen3_moe");
    options.kv_bytes = Engine::describe(path, options).options.kv_bytes;  // 8 blocks
    options.max_sequences = 5;
    engine_ = Engine::load(path, options);
    ids_ = prompt_ids(64, 256);
    expected_ = step_all(engine_->create_sequence(), 20);
    sequence_ = engine_->create_sequence();
    feed(*engine_, sequence_, ids_, 0, 10, 0, ignored_);
  }

  Rows step_all(SequenceId sequence, size_t count) {
    Rows rows;
    feed(*engine_, sequence, ids_, 0, count, 0, rows);
    engine_->release(sequence);
    return rows;
  }

  StepInput input(SequenceId sequence, std::span<const int32_t> tokens,
                  StepInput::Rows rows = StepInput::Rows::kLast) {
    StepInput result;
    result.sequence = sequence;
    result.tokens = tokens;
    result.rows = rows;
    return result;
  }

  void expect_refused(std::initializer_list<StepInput> inputs, ErrorKind kind,
                      std::initializer_list<std::string_view> words) {
    const std::vector<StepInput> list(inputs);
    const auto blocks = engine_->kv_blocks();
    const int64_t length = engine_->length(sequence_);
    const uint64_t readbacks = engine_->readback_count();
    const Error error = error_of([&] { engine_->step(list); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_EQ(engine_->kv_blocks(), blocks);
    EXPECT_EQ(engine_->length(sequence_), length);
    EXPECT_EQ(engine_->readback_count(), readbacks);
  }

  void TearDown() override {
    Rows rows;
    feed(*engine_, sequence_, ids_, 10, 20, 0, rows);
    for (const auto& [position, row] : rows) {
      for (size_t i = 0; i < row.size(); ++i) ASSERT_NEAR(row[i], expected_[position][i], 1e-5);
    }
    EXPECT_EQ(rows.size(), 10u);
  }

  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
  Rows expected_, ignored_;
  SequenceId sequence_ = 0;
};

constexpr ErrorKind kInvalid = ErrorKind::kInvalidArgument;

TEST_P(StepErrors, IdsOutOfRange) {
  const std::vector<int32_t> negative = {3, -1}, large = {3, 256};
  expect_refused({input(sequence_, negative)}, kInvalid, {"token id -1", "255"});
  expect_refused({input(sequence_, large)}, kInvalid, {"token id 256", "255"});
  StepInput scored = input(sequence_, std::span(ids_).first(2));
  for (const int32_t none : {256, -2}) {
    scored.next_token = none;
    expect_refused({scored}, kInvalid, {"next_token", std::to_string(none)});
  }
}

TEST_P(StepErrors, NothingToDo) {
  expect_refused({}, kInvalid, {"at least one token"});
  expect_refused({input(sequence_, {})}, kInvalid, {"no token"});
}

TEST_P(StepErrors, UnknownAndRepeatedSequences) {
  const std::span<const int32_t> one = std::span(ids_).first(1);
  expect_refused({input(sequence_, one), input(777, one)}, kInvalid, {"sequence 777"});
  expect_refused({input(sequence_, one), input(sequence_, one)}, kInvalid, {"twice"});
  const SequenceId gone = engine_->create_sequence();
  engine_->release(gone);
  expect_refused({input(gone, one)}, kInvalid, {"released"});
  EXPECT_EQ(error_of([&] { engine_->release(gone); }).kind(), kInvalid);
  EXPECT_EQ(error_of([&] { engine_->fork(gone); }).kind(), kInvalid);
  EXPECT_EQ(error_of([&] { engine_->length(gone); }).kind(), kInvalid);
  EXPECT_EQ(error_of([&] { engine_->truncate(gone, 0); }).kind(), kInvalid);
}

TEST_P(StepErrors, TruncateOutOfRange) {
  for (int64_t length : {-1, 11}) {
    const Error error = error_of([&] { engine_->truncate(sequence_, length); });
    EXPECT_EQ(error.kind(), kInvalid);
    EXPECT_TRUE(is_one_line_with(error, {"truncated", "0 to 10"})) << error.what();
    EXPECT_EQ(engine_->length(sequence_), 10);
  }
}

TEST_P(StepErrors, TooManyTokensOrRows) {
  const SequenceId other = engine_->create_sequence();
  expect_refused({input(sequence_, std::span(ids_).first(41))}, kInvalid,
                 {"41 tokens", "max_step_tokens", "40"});
  expect_refused(
      {input(sequence_, std::span(ids_).first(20)), input(other, std::span(ids_).first(21))},
      kInvalid, {"41 tokens", "max_step_tokens"});
  expect_refused({input(sequence_, std::span(ids_).first(25), StepInput::Rows::kAll)}, kInvalid,
                 {"25 rows", "max_logit_rows", "24"});
  engine_->release(other);
}

TEST_P(StepErrors, ContextFull) {
  const SequenceId other = engine_->create_sequence();
  feed(*engine_, other, ids_, 0, 24, 0, ignored_);
  feed(*engine_, other, ids_, 24, 44, 20, ignored_);
  feed(*engine_, other, ids_, 44, 62, 20, ignored_);
  expect_refused(
      {input(sequence_, std::span(ids_).first(1)), input(other, std::span(ids_).first(3))},
      kInvalid, {"62 tokens", "64", "max_context"});
  feed(*engine_, other, ids_, 62, 64, 0, ignored_);  // the last two places
  EXPECT_EQ(engine_->length(other), 64);
  expect_refused({input(other, std::span(ids_).first(1))}, kInvalid, {"64"});
  engine_->release(other);
}

TEST_P(StepErrors, OutOfBlocks) {
  std::vector<SequenceId> others;
  for (int i = 0; i < 3; ++i) others.push_back(engine_->create_sequence());
  for (int i = 0; i < 2; ++i) {
    feed(*engine_, others[static_cast<size_t>(i)], ids_, 0, 33, 17,
         ignored_);  // 3 of 8 blocks each
  }
  EXPECT_EQ(engine_->kv_blocks(), (std::pair<int64_t, int64_t>(1, 8)));
  // Either fits alone; together they need two blocks.
  expect_refused(
      {input(others[2], std::span(ids_).first(16)), input(sequence_, std::span(ids_).first(8))},
      ErrorKind::kOutOfMemory, {"2 KV blocks", "1 are free", "kv_bytes"});
  feed(*engine_, others[2], ids_, 0, 1, 0, ignored_);
  const Error error = error_of([&] { engine_->fork(sequence_); });
  EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  EXPECT_TRUE(is_one_line_with(error, {"fork", "kv_bytes"})) << error.what();
  EXPECT_EQ(engine_->kv_blocks().first, 0);
  for (SequenceId other : others) engine_->release(other);
  EXPECT_EQ(engine_->kv_blocks().first, 7);
}

// A shared block is copied for all who write it but the last: that one has it alone then.
TEST_P(StepErrors, SharersOfTheFirstBlockFit) {
  const SequenceId one = engine_->create_sequence();
  feed(*engine_, one, ids_, 0, 16, 0, ignored_);
  std::vector<StepInput> inputs = {input(one, std::span(ids_).subspan(12, 8))};
  for (int i = 0; i < 2; ++i) {
    inputs.push_back(input(engine_->fork(one), std::span(ids_).subspan(12, 8)));
  }
  for (const StepInput& each : inputs) engine_->truncate(each.sequence, 12);
  const SequenceId filler = engine_->create_sequence();
  feed(*engine_, filler, ids_, 0, 16, 0, ignored_);
  // One block is ours and one the filler's; one shared: 5 are free, 2 copies and 3 new are needed.
  EXPECT_EQ(engine_->kv_blocks().first, 5);
  Rows rows;
  keep_rows(engine_->step(inputs), inputs[2].sequence, rows);
  EXPECT_EQ(engine_->kv_blocks().first, 0);
  ASSERT_TRUE(rows.contains(19));
  for (size_t i = 0; i < 256; ++i) ASSERT_NEAR(rows[19][i], expected_[19][i], 1e-5);
  for (const StepInput& each : inputs) engine_->release(each.sequence);
  engine_->release(filler);
}

// A sampler that throws leaves no token behind, and no block.
TEST_P(StepErrors, ThrowingSampler) {
  class Thrower : public SamplerStage {
   public:
    std::string_view name() const override { return "thrower"; }
    uint32_t stage_id() const override { return kFirstHostStageId; }
    void apply(Candidates&, const SampleContext&) override {
      throw Error(ErrorKind::kCancelled, "thrown");
    }
  };
  SamplerPipeline pipeline;
  pipeline.add(std::make_unique<Thrower>());
  VectorSink sink;
  engine_->set_audit_mode(AuditMode::kDeferred);
  engine_->set_audit_sink(&sink);
  const SequenceId other = engine_->create_sequence();
  StepInput inputs[2] = {input(other, std::span(ids_).first(17)),
                         input(sequence_, std::span(ids_).first(9))};
  inputs[1].sampler = &pipeline;
  const auto blocks = engine_->kv_blocks();
  EXPECT_EQ(error_of([&] { engine_->step(inputs); }).kind(), ErrorKind::kCancelled);
  EXPECT_EQ(engine_->kv_blocks(), blocks);
  EXPECT_EQ(engine_->length(other), 0);
  EXPECT_EQ(engine_->length(sequence_), 10);
  EXPECT_TRUE(sink.records().empty());
  engine_->set_audit_sink(nullptr);
  engine_->release(other);
}

// A sink that refuses, or gives no memory: the pass has not happened.
TEST_P(StepErrors, RefusingSink) {
  class Refuser : public VectorSink {
   public:
    std::byte* reserve(size_t) override {
      if (throws) throw Error(ErrorKind::kIo, "no room");
      return nullptr;
    }
    bool throws = true;
  };
  Refuser sink;
  engine_->set_audit_mode(AuditMode::kDeferred);
  engine_->set_audit_sink(&sink);
  const auto blocks = engine_->kv_blocks();
  const StepInput each = input(sequence_, std::span(ids_).first(9));
  EXPECT_EQ(error_of([&] { engine_->step({&each, 1}); }).kind(), ErrorKind::kIo);
  sink.throws = false;
  EXPECT_EQ(error_of([&] { engine_->step({&each, 1}); }).kind(), ErrorKind::kInvalidArgument);
  SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kOverwrite);
  for (const bool is_first : {true, false}) {  // beside one that has memory
    TeeSink both = is_first ? TeeSink(sink, ring) : TeeSink(ring, sink);
    engine_->set_audit_sink(&both);
    EXPECT_EQ(error_of([&] { engine_->step({&each, 1}); }).kind(), ErrorKind::kInvalidArgument);
    engine_->set_audit_sink(nullptr);
  }
  EXPECT_EQ(engine_->kv_blocks(), blocks);
  EXPECT_EQ(engine_->length(sequence_), 10);
}

INSTANTIATE_TEST_SUITE_P(Kernels, StepErrors,
                         ::testing::Values(KernelPath::kFused, KernelPath::kReference),
                         [](const auto& info) {
                           return info.param == KernelPath::kFused ? "fused" : "reference";
                         });

}  // namespace
}  // namespace vitrine::testing
