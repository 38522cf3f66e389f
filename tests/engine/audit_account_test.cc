// SPDX-License-Identifier: Apache-2.0
// The account of an engine's sequences in a sealed log: forked, truncated, released, a step that
// failed, a recorder that was off.
#include <array>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "vitrine/audit_log.h"

namespace vitrine::testing {
namespace {

class AuditAccount : public ::testing::Test {
 protected:
  AuditAccount() {
    EngineOptions options = test_options();
    options.audit_mode = AuditMode::kDeferred;
    engine_ = Engine::load(oracle_folder("qwen3_moe"), options);
    ids_ = prompt_ids(100, engine_->summary().vocab_size);
  }
  void step(SequenceId sequence, size_t first, size_t count) {
    StepInput input;
    input.sequence = sequence;
    input.tokens = std::span(ids_).subspan(first, count);
    engine_->step({&input, 1});
  }
  LogHeader header() const {
    LogHeader header;
    header.vocab_size = engine_->summary().vocab_size;
    return header;
  }
  VtrReport finish(VtrLog& log) {
    engine_->set_audit_sink(nullptr);
    log.finish("length");
    const VtrReport report = verify_vtr(path_);
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
    EXPECT_EQ(report.counts, log.counts());
    return report;
  }

  TemporaryFolder folder_;
  const std::string path_ = folder_ / "run.vtr";
  std::unique_ptr<Engine> engine_;
  std::vector<int32_t> ids_;
};

TEST_F(AuditAccount, EveryPositionOfEverySequence) {
  VtrLog log(path_, header());
  engine_->set_audit_sink(&log.sink());
  const SequenceId one = engine_->create_sequence();
  step(one, 0, 20);
  const SequenceId two = engine_->fork(one);  // 20 replayed
  step(two, 20, 5);
  engine_->truncate(two, 18);  // 5 captured and 2 replayed discarded
  engine_->truncate(two, 18);  // nothing happens
  step(two, 30, 4);
  step(one, 20, 1);
  engine_->release(one);
  // A step that is refused has changed nothing, and says nothing.
  EXPECT_THROW(step(one, 0, 1), Error);
  ids_[50] = -1;
  EXPECT_THROW(step(two, 50, 1), Error);
  engine_->release(two);
  const VtrReport report = finish(log);
  const VtrAccount& positions = report.counts.positions;
  EXPECT_EQ(positions.captured, 20u + 4 + 1);
  EXPECT_EQ(positions.replayed, 18u);
  EXPECT_EQ(positions.discarded, 7u);
  EXPECT_EQ(positions.num_lost(), 0u);
  EXPECT_EQ(report.counts.sequences, 2u);
  EXPECT_EQ(report.counts.passes, 4u);
  EXPECT_GT(report.counts.step_ns, 0u);
}

// As a scheduler does that needs a sequence's memory for another: all of it is undone, or the
// sequence is released, and what it had is computed once more.
TEST_F(AuditAccount, DroppedAndRecomputed) {
  VtrLog log(path_, header());
  std::vector<std::pair<int64_t, std::array<float, 2>>> chosen;
  log.on_record([&](const TokenRecord& record) {
    if (!record.has_prediction) return;
    chosen.push_back({record.position, {record.prediction.logprob, record.prediction.entropy}});
  });
  engine_->set_audit_sink(&log.sink());
  const SequenceId one = engine_->create_sequence(), two = engine_->create_sequence();
  step(one, 0, 20);
  step(two, 0, 11);
  engine_->truncate(one, 0);  // dropped in place
  step(two, 11, 1);
  step(one, 0, 20);  // and recomputed
  engine_->release(two);
  const SequenceId again = engine_->create_sequence();
  step(again, 0, 12);
  const VtrReport report = finish(log);
  const VtrAccount& positions = report.counts.positions;
  EXPECT_EQ(positions.captured, 20u + 12 + 12);
  EXPECT_EQ(positions.discarded, 20u);
  EXPECT_EQ(positions.num_lost(), 0u);
  EXPECT_EQ(positions.total(), 64u);
  EXPECT_EQ(report.counts.sequences, 3u);
  ASSERT_EQ(chosen.size(), 5u);
  EXPECT_EQ(chosen[0], chosen[3]) << "the same token of the same sequence, computed twice";
  EXPECT_EQ(chosen[2], chosen[4]);
}

TEST_F(AuditAccount, WhatHappensWithoutTheRecorderIsLost) {
  const SequenceId one = engine_->create_sequence();
  step(one, 0, 7);
  VtrLog log(path_, header());
  engine_->set_audit_sink(&log.sink());
  step(one, 7, 2);
  engine_->set_audit_mode(AuditMode::kNone);
  step(one, 9, 4);
  const SequenceId two = engine_->fork(one);
  engine_->set_audit_mode(AuditMode::kDeferred);
  step(two, 13, 1);
  engine_->set_audit_mode(AuditMode::kNone);
  step(one, 13, 3);
  engine_->truncate(one, 10);
  engine_->release(one);
  engine_->set_audit_mode(AuditMode::kDeferred);
  const VtrReport report = finish(log);
  const VtrAccount& positions = report.counts.positions;
  EXPECT_EQ(positions.captured, 2u + 1);
  EXPECT_EQ(positions.replayed, 13u);
  EXPECT_EQ(positions.discarded, 6u);
  EXPECT_EQ(positions.num_lost(), 7u + 1);
}

TEST_F(AuditAccount, GenerateIsAccountedForAndUnchanged) {
  GenerateOptions options;
  options.max_new_tokens = 20;
  options.ignore_end_of_text = true;
  const std::span<const int32_t> prompt = std::span(ids_).first(12);
  const auto plain = generate(*engine_, prompt, options).tokens;
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kCounters}) {
    VtrLog log(path_, header(), {.detail = detail, .overwrite = true});
    engine_->set_audit_sink(&log.sink());
    EXPECT_EQ(generate(*engine_, prompt, options).tokens, plain);
    // Cancelled in the middle: the sequence is released, and all of it is accounted for.
    int count = 0;
    generate(*engine_, prompt, options, [&](const TokenEvent&) { return ++count < 5; });
    const VtrReport report = finish(log);
    EXPECT_EQ(report.counts.positions.total(), 12u + 19 + 12 + 4);
    EXPECT_EQ(report.counts.positions.num_lost(), 0u);
    EXPECT_EQ(report.counts.sequences, 2u);
  }
}

/// Throws whenever it is told of a sequence.
class ThrowingSink : public VectorSink {
 public:
  void on_event(const AuditEvent&) override { throw std::runtime_error("a host's mistake"); }
};

TEST_F(AuditAccount, ASinkThatThrowsKeepsNoSequence) {
  std::vector<std::string> warnings;
  set_log_callback([&](LogLevel level, std::string_view message) {
    if (level == LogLevel::kWarning) warnings.emplace_back(message);
  });
  ThrowingSink sink;
  engine_->set_audit_sink(&sink);
  const auto free_blocks = engine_->kv_blocks().first;
  GenerateOptions options;
  options.max_new_tokens = 4;
  const auto prompt = std::span(ids_).first(7);
  const GenerateResult with = generate(*engine_, prompt, options);
  const SequenceId sequence = engine_->create_sequence();
  engine_->release(engine_->fork(sequence));
  engine_->release(sequence);
  engine_->set_audit_sink(nullptr);
  set_log_callback({});
  EXPECT_EQ(warnings.size(), 6u);  // created and released twice, forked, released
  for (const std::string& warning : warnings) {
    EXPECT_NE(warning.find("on_event() threw at sequence "), std::string::npos) << warning;
  }
  EXPECT_EQ(engine_->kv_blocks().first, free_blocks);
  EXPECT_EQ(sink.take().size(), 10u);
  EXPECT_EQ(with.tokens, generate(*engine_, prompt, options).tokens);
}

}  // namespace
}  // namespace vitrine::testing
