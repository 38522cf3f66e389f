// SPDX-License-Identifier: Apache-2.0
// A log of several sequences, forked, truncated, released and batched: run again, bit for bit.
#include "examples/cli/audit_rerun.h"

#include <gtest/gtest.h>

#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

StepInput input_of(SequenceId sequence, std::span<const int32_t> tokens,
                   SamplerPipeline* sampler = nullptr) {
  StepInput input;
  input.sequence = sequence;
  input.tokens = tokens;
  input.sampler = sampler;
  input.seed = sequence;
  return input;
}

class RerunLog : public ::testing::Test {
 protected:
  RerunLog() : engine_(Engine::load(shipped_model(), options(8))) {}

  static EngineOptions options(int sequences) {
    EngineOptions options = test_options(2, 16);
    options.max_sequences = sequences;
    options.max_step_tokens = 320;
    options.max_logit_rows = 64;
    options.keep_logits = false;
    options.audit_mode = AuditMode::kDeferred;
    return options;
  }

  std::string path() const { return folder_ / "run.vtr"; }

  /// Every sequence takes one more token, all in one step.
  void decode(std::span<const SequenceId> sequences, std::vector<int32_t>& last) {
    std::vector<StepInput> inputs;
    for (size_t i = 0; i < sequences.size(); ++i) {
      inputs.push_back(input_of(sequences[i], {&last[i], 1}, &sampler_));
    }
    std::vector<int32_t> next;
    for (const StepOutput& output : engine_->step(inputs)) next.push_back(output.token);
    last = next;
  }

  void write_log() {
    LogHeader header;
    header.vocab_size = engine_->summary().vocab_size;
    VtrLog log(path(), header, {.overwrite = true});
    engine_->set_audit_sink(&log.sink());
    const std::vector<int32_t> ids = prompt_ids(60, engine_->summary().vocab_size);
    std::vector<SequenceId> live = {engine_->create_sequence(), engine_->create_sequence()};
    const std::span all(ids);
    std::vector<StepInput> prompts = {input_of(live[0], all.first(20), &sampler_),
                                      input_of(live[1], all.subspan(9, 33), &sampler_)};
    std::vector<int32_t> last;
    for (const StepOutput& output : engine_->step(prompts)) last.push_back(output.token);
    for (int i = 0; i < 5; ++i) decode(live, last);
    live.push_back(engine_->fork(live[0]));
    last.push_back(7);
    for (int i = 0; i < 5; ++i) decode(live, last);
    engine_->truncate(live[1], 30);  // takes back some of the prompt, too
    last[1] = 11;
    for (int i = 0; i < 4; ++i) decode(live, last);
    engine_->release(live[0]);
    live.erase(live.begin());
    last.erase(last.begin());
    live.push_back(engine_->create_sequence());
    last.push_back(3);
    for (int i = 0; i < 6; ++i) decode(live, last);
    // What outlives its sequence begins another, and a draft is kept in part.
    const PrefixId prefix = engine_->retain(live[1], 28);
    engine_->release(std::exchange(live[1], engine_->attach(prefix, 23)));
    for (int i = 0; i < 3; ++i) decode(live, last);
    engine_->release_prefix(prefix);
    const std::vector<int32_t> draft = {5, 6, 7, 8};
    const StepInput drafted = input_of(live[0], draft, &sampler_);
    engine_->step({&drafted, 1});
    engine_->keep(live[0], 2);
    for (int i = 0; i < 3; ++i) decode(live, last);
    StepInput scored = input_of(live[2], all.first(9));
    scored.rows = StepInput::Rows::kAll;
    scored.next_token = 42;  // which nothing follows
    engine_->step({&scored, 1});
    for (const SequenceId sequence : live) engine_->release(sequence);
    engine_->set_audit_sink(nullptr);
    log.finish("length");
  }

  TemporaryFolder folder_;
  std::unique_ptr<Engine> engine_;
  SamplerPipeline sampler_ = SamplerPipeline::from_options({.temperature = 1.0F});
};

TEST_F(RerunLog, GivesTheSameDigests) {
  write_log();
  const cli::Run run = cli::load_run(path(), "", "");
  ASSERT_GT(run.records.size(), 100u);
  ASSERT_EQ(run.report->seal, VtrReport::Seal::kComplete);
  const cli::RerunSizes sizes = cli::rerun_sizes(run);
  EXPECT_EQ(sizes.sequences, 5);  // a prefix, and what begins with it, beside three
  EXPECT_EQ(sizes.context, 48);
  EngineOptions small = options(static_cast<int>(sizes.sequences));
  small.max_context = static_cast<int>(sizes.context);
  small.max_step_tokens = small.max_context;
  small.max_logit_rows = cli::kRerunRows;
  auto engine = Engine::load(shipped_model(), small);
  const auto blocks = engine->kv_blocks();
  for (const bool force_routes : {false, true}) {
    const auto again = cli::rerun(run, *engine, force_routes);
    ASSERT_EQ(again.size(), run.records.size());
    for (size_t i = 0; i < again.size(); ++i) {
      ASSERT_TRUE(again[i]) << "record " << i;
      TokenRecord record = *again[i];
      ASSERT_EQ(record.position, run.records[i].position);
      ASSERT_EQ(record.token, run.records[i].token);
      record.has_prediction = record.has_prediction && run.records[i].has_prediction;
      ASSERT_EQ(record_digest(record), run.digests[i])
          << "record " << i << ", position " << record.position;
      // What the log has instead of the value.
      const TokenRecord rounded = round_record(record, LogDetail::kStandard);
      for (size_t l = 0; l < rounded.layers.size(); ++l) {
        ASSERT_EQ(rounded.layers[l].residual_norm, run.records[i].layers[l].residual_norm);
        ASSERT_EQ(rounded.layers[l].routes[0].weight, run.records[i].layers[l].routes[0].weight);
      }
    }
    EXPECT_EQ(engine->kv_blocks(), blocks);  // nothing stays behind
  }
}

// Positions that were lost end a sequence's rerun, and no other's.
TEST_F(RerunLog, StopsWhereTokensAreNotInTheLog) {
  LogHeader header;
  header.vocab_size = engine_->summary().vocab_size;
  VtrLog log(path(), header, {.overwrite = true});
  engine_->set_audit_sink(&log.sink());
  std::vector<SequenceId> live = {engine_->create_sequence(), engine_->create_sequence()};
  std::vector<int32_t> last = {1, 2};
  for (int i = 0; i < 5; ++i) decode(live, last);
  engine_->set_audit_mode(AuditMode::kNone);
  decode(std::span(live).first(1), last);
  engine_->set_audit_mode(AuditMode::kDeferred);
  last.resize(2, 9);
  for (int i = 0; i < 5; ++i) decode(live, last);
  engine_->set_audit_sink(nullptr);
  log.finish("length");
  const cli::Run run = cli::load_run(path(), "", "");
  ASSERT_EQ(run.records.size(), 20u);
  const auto again = cli::rerun(run, *engine_, false);
  for (size_t i = 0; i < again.size(); ++i) {
    const bool is_behind = run.records[i].sequence == live[0] && run.records[i].position > 5;
    ASSERT_EQ(again[i].has_value(), !is_behind) << "record " << i;
    if (again[i]) {
      EXPECT_EQ(record_digest(*again[i]), run.digests[i]);
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
