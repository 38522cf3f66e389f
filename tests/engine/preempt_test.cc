// SPDX-License-Identifier: Apache-2.0
// Sequences that give up their blocks and go on later: the same bits, the same records.
#include <gtest/gtest.h>

#include <random>

#include "tests/engine/federation_fixture.h"
#include "tests/engine/window_fixture.h"
#include "vitrine/generate.h"

namespace vitrine::testing {
namespace {

/// Answers side by side, of which some give up their blocks now and then.
struct Outcome {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<std::byte>> records;
  int64_t rerun = 0;
};

Outcome answer(Stepper& stepper, double preempted, int blocks_in_all) {
  VectorSink sink;
  stepper.set_audit_sink(&sink);
  GenerateOptions options;
  options.max_new_tokens = 30;
  options.ignore_end_of_text = true;
  options.sampler.temperature = 0.8F;
  options.sampler.repetition_penalty = 1.1F;
  Outcome run;
  {
    std::vector<Generation> answers;
    for (uint32_t i = 0; i < 3; ++i) {
      answers.emplace_back(
          stepper, prompt_ids(11 + 23 * static_cast<int>(i), stepper.summary().vocab_size, i + 1),
          options);
    }
    std::mt19937 rng(5);
    while (std::ranges::any_of(answers, [](const Generation& one) { return !one.finished(); })) {
      std::vector<StepInput> inputs;
      std::vector<Generation*> open;
      for (Generation& one : answers) {
        if (one.finished()) continue;
        if (std::uniform_real_distribution<double>()(rng) < preempted) one.preempt();
        open.push_back(&one);
        inputs.push_back(one.next_input(17));
      }
      const StepFit fit = stepper.fits(inputs);
      EXPECT_TRUE(fit.fits());
      run.rerun += fit.rerun_tokens;
      std::span<const StepOutput> outputs = stepper.step(inputs);
      for (size_t i = 0; i < open.size(); ++i) {
        const auto count = static_cast<size_t>(Stepper::row_count(inputs[i]));
        open[i]->accept(outputs.first(count));
        outputs = outputs.subspan(count);
      }
    }
    for (Generation& one : answers) run.tokens.push_back(one.take_result().tokens);
  }
  stepper.set_audit_sink(nullptr);
  run.records = sink.records();
  EXPECT_EQ(stepper.kv_blocks().first, blocks_in_all);
  return run;
}

class Preempt : public ::testing::TestWithParam<std::string> {
 protected:
  EngineOptions options() const {
    EngineOptions options = test_options(2, 16);
    options.audit_mode = AuditMode::kDeferred;
    options.audit_level = AuditLevel::kFull;
    return options;
  }
};

TEST_P(Preempt, AnswersAndRecordsAreTheSame) {
  const auto engine = Engine::load(oracle_folder(GetParam()), options());
  const auto plain_engine = Engine::load(oracle_folder(GetParam()), options());
  const int blocks = static_cast<int>(engine->kv_blocks().second);
  const Outcome plain = answer(*plain_engine, 0, blocks);
  const Outcome preempted = answer(*engine, 0.2, blocks);
  EXPECT_EQ(plain.rerun, 0);
  EXPECT_GT(preempted.rerun, 300);
  EXPECT_EQ(preempted.tokens, plain.tokens);
  EXPECT_EQ(preempted.records, plain.records);
}

TEST_P(Preempt, ForksPrefixesAndCutsBehindIt) {
  EngineOptions given = options();
  given.audit_mode = AuditMode::kNone;
  const auto engine = Engine::load(oracle_folder(GetParam()), given);
  const std::vector<int32_t> ids = prompt_ids(90, engine->summary().vocab_size);
  const Rows expected = score(*engine, ids);
  const int64_t all = engine->kv_blocks().first;
  Rows ignored;
  const SequenceId first = engine->create_sequence();
  engine->preempt(first);  // of nothing
  feed(*engine, first, ids, 0, 70, 0, ignored);
  const PrefixId prefix = engine->retain(first, 37);
  const int64_t held = engine->prefix(prefix).blocks;
  engine->preempt(first);
  EXPECT_EQ(engine->kv_blocks().first, all - held) << "the prefix keeps its own";
  EXPECT_EQ(engine->length(first), 70);
  EXPECT_TRUE(std::ranges::equal(engine->tokens(first), std::span(ids).first(70)));
  EXPECT_THROW(engine->retain(first, 30), Error) << "it has none to keep";
  // The sequence's state has taken in more, and no earlier one was kept.
  EXPECT_EQ(engine->resumed_length(prefix, 37), engine->traits().keeps_states ? 0 : 37);
  const SequenceId fork = engine->fork(first), attached = engine->attach(prefix);
  engine->truncate(first, 53);
  const auto expect_rest = [&](SequenceId sequence, int64_t rerun) {
    const auto begin = static_cast<size_t>(engine->length(sequence));
    StepInput input{sequence, std::span(ids).subspan(begin, 1)};
    EXPECT_EQ(engine->fits({&input, 1}).rerun_tokens, rerun);
    const int64_t before = engine->kv_blocks().first;
    const int64_t taken = engine->fits({&input, 1}).blocks;
    Rows rows;
    feed(*engine, sequence, ids, begin, begin + 1, 0, rows);
    if (engine->options().max_states == 0 && !engine->traits().keeps_states) {
      EXPECT_EQ(engine->kv_blocks().first, before - taken);
    }
    feed(*engine, sequence, ids, begin + 1, ids.size(), 9, rows);
    EXPECT_TRUE(same_bits(expected, rows, ids.size() - begin));
  };
  // What its own prefix has of it comes back, in whole blocks.
  expect_rest(first, engine->traits().keeps_states ? 53 : 53 - 32);
  expect_rest(fork, 70);
  expect_rest(attached, engine->traits().keeps_states ? 37 : 0);
  engine->preempt(attached);
  engine->truncate(attached, 0);
  expect_rest(attached, 0);
  for (const SequenceId sequence : {first, fork, attached}) engine->release(sequence);
  engine->release_prefix(prefix);
  EXPECT_EQ(engine->kv_blocks().first, all);
}

// A step that fails in the middle of it leaves a sequence that can be stepped again.
TEST_P(Preempt, AStepThatHasNoBlocksForIt) {
  EngineOptions given = options();
  given.audit_mode = AuditMode::kNone;
  given.kv_bytes = Engine::describe(oracle_folder(GetParam()), given).summary.kv_bytes / 2;
  const auto engine = Engine::load(oracle_folder(GetParam()), given);
  const std::vector<int32_t> ids = prompt_ids(150, engine->summary().vocab_size);
  const Rows expected = score(*engine, ids);
  Rows ignored, rows;
  const SequenceId first = engine->create_sequence();
  feed(*engine, first, ids, 0, 100, 0, ignored);
  engine->preempt(first);
  std::vector<SequenceId> others;  // which take all blocks
  while (engine->kv_blocks().first >= 10) {
    others.push_back(engine->create_sequence());
    feed(*engine, others.back(), ids, 0, ids.size(), 0, ignored);
  }
  const StepInput input{first, std::span(ids).subspan(100, 50), StepInput::Rows::kAll};
  ASSERT_FALSE(engine->fits({&input, 1}).fits());
  EXPECT_THROW(engine->step({&input, 1}), Error);
  EXPECT_EQ(engine->length(first), 100);
  for (const SequenceId other : others) engine->release(other);
  keep_rows(engine->step({&input, 1}), first, rows);
  EXPECT_TRUE(same_bits(expected, rows, 50));
}

INSTANTIATE_TEST_SUITE_P(Models, Preempt,
                         ::testing::Values("qwen3_moe", "qwen3_next", "gemma4_text", "deepseek_v3",
                                           "lfm2_moe"),
                         [](const auto& info) { return info.param; });

TEST(PreemptWindows, BlocksBelowThemAreComputedAgain) {
  const WindowFolder folder("gpt_oss", 40);
  const std::vector<int32_t> ids = prompt_ids(300, 256);
  const Rows expected = score_whole(folder.path(), ids);
  const auto engine = Engine::load(folder.path(), window_options(16));
  const int64_t all = engine->kv_blocks().first;
  Rows rows;
  const SequenceId sequence = engine->create_sequence();
  for (size_t begin = 0; begin < ids.size(); begin += 20) {
    feed(*engine, sequence, ids, begin, begin + 20, 0, rows);
    if (begin % 60 == 40) {
      engine->preempt(sequence);
      EXPECT_EQ(engine->kv_blocks().first, all);
    }
  }
  EXPECT_TRUE(same_bits(expected, rows, ids.size()));
}

TEST(PreemptDrafts, KeepAndGiveUpInOneAnswer) {
  for (const char* oracle : {"qwen3_moe", "qwen3_next"}) {
    SCOPED_TRACE(oracle);
    const auto engine = Engine::load(oracle_folder(oracle), test_options(1, 16));
    GenerateOptions options;
    options.max_new_tokens = 60;
    options.ignore_end_of_text = true;
    const std::vector<int32_t> prompt = prompt_ids(20, engine->summary().vocab_size);
    const std::vector<int32_t> plain = generate(*engine, prompt, options).tokens;
    const auto drafter = make_drafter("suffix");
    options.speculation.drafter = drafter.get();
    Generation answer(*engine, prompt, options);
    for (int step = 1; !answer.finished(); ++step) {
      if (step % 4 == 0) answer.preempt();
      const StepInput input = answer.next_input();
      answer.accept(engine->step({&input, 1}));
    }
    EXPECT_EQ(answer.result().tokens, plain);
  }
}

TEST_F(FederationTest, PreemptedAnswersAreTheSame) {
  EngineOptions options = test_options(1, 16);
  options.audit_mode = AuditMode::kDeferred;
  for (const FederationSpec* spec : {&separate_, &adapted_}) {
    const auto plain_federation = Federation::load(*spec, options);
    const auto federation = Federation::load(*spec, options);
    const int blocks = static_cast<int>(federation->kv_blocks().second);
    const Outcome plain = answer(*plain_federation, 0, blocks);
    const Outcome preempted = answer(*federation, 0.2, blocks);
    EXPECT_GT(preempted.rerun, 0);
    EXPECT_EQ(preempted.tokens, plain.tokens);
    EXPECT_EQ(preempted.records, plain.records);
  }
}

TEST_F(FederationTest, PrefixesBeginSequences) {
  const auto federation = Federation::load(separate_, test_options(1, 16));
  const Rows expected = feed_all(*federation, 50);
  const auto step = [&](SequenceId sequence, size_t begin, size_t end, Rows& rows) {
    const StepInput input{sequence, std::span<const int32_t>(prompt_).subspan(begin, end - begin),
                          StepInput::Rows::kAll};
    const StepFit fit = federation->fits({&input, 1});
    EXPECT_TRUE(fit.fits());
    EXPECT_EQ(fit.tokens, static_cast<int64_t>(end - begin));
    keep_rows(federation->step({&input, 1}), sequence, rows);
  };
  Rows rows;
  const auto blocks = federation->kv_blocks();
  const SequenceId source = federation->create_sequence();
  step(source, 0, 40, rows);
  federation->keep(source, 31);
  EXPECT_EQ(federation->length(source), 31);
  EXPECT_THROW(federation->keep(source, 32), Error);
  const PrefixId prefix = federation->retain(source, 29);
  EXPECT_THROW(federation->retain(source, 32), Error);
  federation->release(source);
  EXPECT_EQ(federation->prefix(prefix).tokens.size(), 29U);
  EXPECT_EQ(federation->prefix(prefix).blocks, 4);
  EXPECT_EQ(federation->resumed_length(prefix, 29), 29);
  for (const int64_t length : {29, 17, 0}) {
    const SequenceId sequence = federation->attach(prefix, length);
    Rows tail;
    step(sequence, static_cast<size_t>(length), prompt_.size(), tail);
    EXPECT_TRUE(same_bits(expected, tail, prompt_.size() - static_cast<size_t>(length)));
    federation->release(sequence);
  }
  EXPECT_THROW(federation->attach(prefix, 30), Error);
  federation->release_prefix(prefix);
  EXPECT_THROW(federation->attach(prefix), Error);
  EXPECT_EQ(federation->kv_blocks(), blocks);
}

}  // namespace
}  // namespace vitrine::testing
