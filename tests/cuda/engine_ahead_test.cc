// SPDX-License-Identifier: Apache-2.0
// Engines whose device starts a step before the last one's results are on the host (StepInput::
// goes_on), emulated, beside engines on the CPU, which never do.
#include "tests/cuda/emulated_counts.h"
#include "tests/cuda/engine_options_on.h"
#include "tests/engine/recorded_answer.h"
#include "tests/support/in_sequence.h"
#include "vitrine/audit_log.h"
#include "vitrine/sample.h"

namespace vitrine::testing {
namespace {

std::unique_ptr<Engine> make_engine(bool is_cuda, int max_context = 96) {
  EngineOptions options = options_on(is_cuda);
  options.max_context = max_context;
  return Engine::load(oracle_folder("qwen3_moe"), options);
}

GenerateOptions answer_options(int tokens, const SamplerOptions& sampler = {.temperature = 0}) {
  GenerateOptions options;
  options.max_new_tokens = tokens;
  options.ignore_end_of_text = true;
  options.sampler = sampler;
  return options;
}

const std::vector<int32_t> kPrompt = {1, 2, 3, 4, 5};

/// What is generated and recorded on both; returns how many steps the device started.
int64_t expect_same_answer(const SamplerOptions& sampler, const char* regex, int tokens) {
  const auto cpu = make_engine(false), cuda = make_engine(true);
  const int64_t before = steps_started();
  const RecordedAnswer found = recorded_answer(*cuda, sampler, regex, tokens);
  const int64_t steps = steps_started() - before;
  const RecordedAnswer expected = recorded_answer(*cpu, sampler, regex, tokens);
  EXPECT_EQ(found.result.tokens, expected.result.tokens);
  EXPECT_EQ(found.records.size(), expected.records.size());
  for (size_t i = 0; i < std::min(found.records.size(), expected.records.size()); ++i) {
    EXPECT_EQ(found.records[i].token, expected.records[i].token);
    EXPECT_EQ(found.records[i].position, expected.records[i].position);
    EXPECT_EQ(found.records[i].prediction.token, expected.records[i].prediction.token);
    EXPECT_EQ(found.records[i].layers.back().residual_norm,
              expected.records[i].layers.back().residual_norm);
  }
  EXPECT_EQ(cuda->kv_blocks(), cpu->kv_blocks());
  return steps - static_cast<int64_t>(found.result.tokens.size());
}

TEST(CudaEngineAhead, NoStepIsStartedInVain) {
  SamplerOptions draws{.temperature = 0.9F, .top_k = 30, .top_p = 0.9F}, looks_back = draws;
  looks_back.repetition_penalty = 1.3F;
  SamplerOptions bans = draws;
  bans.ban = {{3, 4}};
  // 70 tokens cross a block of keys and values.
  EXPECT_EQ(expect_same_answer(draws, nullptr, 70), 0);
  for (const SamplerOptions& sampler : {SamplerOptions{.temperature = 0}, looks_back, bans}) {
    EXPECT_EQ(expect_same_answer(sampler, nullptr, 12), 0);
  }
  EXPECT_EQ(expect_same_answer(draws, "(ab|cd|[0-9]){4,30}", 20), 0);
}

TEST(CudaEngineAhead, AnEndThatNobodyKnewOfLeavesNothing) {
  const auto cpu = make_engine(false), cuda = make_engine(true);
  GenerateOptions options = answer_options(30);
  const std::vector<int32_t> whole = generate(*cpu, kPrompt, options).tokens;
  options.stop_token_ids = {whole[11]};
  options.ignore_end_of_text = false;
  const GenerateResult expected = generate(*cpu, kPrompt, options);
  ASSERT_LT(expected.tokens.size(), whole.size());
  SlabRing ring(1 << 20, SlabRing::WhenFull::kOverwrite);
  cuda->set_audit_sink(&ring);
  const SequenceId sequence = cuda->create_sequence();
  const int64_t before = steps_started();
  const GenerateResult found = generate(*cuda, kPrompt, in_sequence(sequence, options));
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.reason, StopReason::kEndOfText);
  EXPECT_EQ(steps_started() - before, static_cast<int64_t>(found.tokens.size()) + 1);
  const auto fed = static_cast<int64_t>(kPrompt.size() + found.tokens.size()) - 1;
  EXPECT_EQ(cuda->length(sequence), fed) << "the last one is not computed";
  EXPECT_EQ(ring.drain_records().size(), static_cast<size_t>(fed)) << "what ran in vain is in none";
  // The sequence goes on as if nothing had been.
  const SequenceId other = cpu->create_sequence();
  generate(*cpu, kPrompt, in_sequence(other, options));
  const std::vector<int32_t> more = {found.tokens.back(), 9, 8};
  EXPECT_EQ(generate(*cuda, more, in_sequence(sequence, options)).tokens,
            generate(*cpu, more, in_sequence(other, options)).tokens);
  cuda->release(sequence);
  EXPECT_EQ(cuda->kv_blocks().first, cuda->kv_blocks().second);
  cuda->set_audit_sink(nullptr);
}

// Whatever a host does between two steps, or in the midst of an answer.
TEST(CudaEngineAhead, OtherWorkComesInBetween) {
  std::vector<std::vector<int32_t>> answers[2];
  for (const bool is_cuda : {false, true}) {
    const auto engine = make_engine(is_cuda, 192);
    std::vector<std::vector<int32_t>>& all = answers[is_cuda ? 1 : 0];
    const SequenceId sequence = engine->create_sequence();
    SequenceId copy = 0;
    const auto on_token = [&](const TokenEvent& event) {
      if (event.position == 20) {
        all.push_back(generate(*engine, std::vector<int32_t>{9, 7}, answer_options(9)).tokens);
      }
      if (event.position == 30) copy = engine->fork(sequence);
      return event.position != 40;
    };
    all.push_back(
        generate(*engine, kPrompt, in_sequence(sequence, answer_options(90)), on_token).tokens);
    // The same positions with other tokens, and the fork with its own.
    engine->truncate(sequence, 25);
    all.push_back(
        generate(*engine, std::vector<int32_t>{2}, in_sequence(sequence, answer_options(50)))
            .tokens);
    all.push_back(
        generate(*engine, std::vector<int32_t>{3}, in_sequence(copy, answer_options(50))).tokens);
    engine->set_audit_mode(AuditMode::kNone);
    all.push_back(
        generate(*engine, std::vector<int32_t>{4}, in_sequence(copy, answer_options(20))).tokens);
  }
  EXPECT_EQ(answers[0].size(), 5U);
  EXPECT_EQ(answers[0], answers[1]);
}

// A step that was started ahead has written into a block that was nobody's: a fork takes it, copies
// into it, and gives it back before the step is asked for.
TEST(CudaEngineAhead, AForkTakesTheBlockThatWasWrittenAhead) {
  std::vector<uint64_t> digests[2];
  for (const bool is_cuda : {false, true}) {
    const auto engine = make_engine(is_cuda);
    VectorSink sink;
    engine->set_audit_sink(&sink);
    std::vector<StepInput> inputs(1);
    StepInput &input = inputs[0], other{engine->create_sequence(), kPrompt};
    engine->step({&other, 1});
    const std::vector<int32_t> prompt = prompt_ids(63, 256);
    input.sequence = engine->create_sequence();
    for (size_t fed = 0; fed < 60; fed += 15) {
      input.tokens = std::span(prompt).subspan(fed, 15);
      engine->step(inputs);
    }
    input.tokens = std::span(prompt).subspan(60);
    input.goes_on = true;
    std::vector<int32_t> token = {engine->step(inputs)[0].token};
    for (int step = 0; step < 4; ++step) {
      input.tokens = token;
      const int32_t next = engine->step(inputs)[0].token;
      if (engine->length(input.sequence) == 64) engine->release(engine->fork(other.sequence));
      token = {next};
    }
    engine->set_audit_sink(nullptr);
    for (const TokenRecord& record : sink.take()) {
      digests[is_cuda ? 1 : 0].push_back(record_digest(record));
    }
  }
  EXPECT_EQ(digests[0].size(), 5U + 63U + 4U);
  EXPECT_EQ(digests[0], digests[1]);
}

TEST(CudaEngineAhead, AThrowingHostLosesNothing) {
  const auto cpu = make_engine(false), cuda = make_engine(true);
  const SequenceId sequence = cuda->create_sequence();
  EXPECT_THROW(generate(*cuda, kPrompt, in_sequence(sequence, answer_options(20)),
                        [](const TokenEvent& event) -> bool {
                          if (event.position == 9) throw std::runtime_error("full");
                          return true;
                        }),
               std::runtime_error);
  EXPECT_EQ(cuda->length(sequence), 9) << "the token at 9 was chosen, not computed";
  cuda->truncate(sequence, 0);
  EXPECT_EQ(generate(*cuda, kPrompt, in_sequence(sequence, answer_options(20))).tokens,
            generate(*cpu, kPrompt, answer_options(20)).tokens);
}

/// Several sequences that go on together, as a server's do.
TEST(CudaEngineAhead, ABatchGoesOn) {
  std::vector<int32_t> chosen[2];
  int64_t started = 0;
  for (const bool is_cuda : {false, true}) {
    const auto engine = make_engine(is_cuda);
    SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = 1.1F, .top_k = 20});
    const std::vector<std::vector<int32_t>> prompts = {{1, 2, 3}, {4}, {5, 6, 7, 8}};
    std::vector<std::vector<int32_t>> tokens = prompts;
    std::vector<StepInput> inputs(prompts.size());
    if (is_cuda) started = -steps_started();
    for (int step = 0; step < 75; ++step) {
      if (step == 0) {
        for (StepInput& input : inputs) input.sequence = engine->create_sequence();
      }
      if (step == 40) inputs.pop_back();
      for (size_t i = 0; i < inputs.size(); ++i) {
        inputs[i].tokens = tokens[i];
        inputs[i].rows = step == 0 && i == 0 ? StepInput::Rows::kAll : StepInput::Rows::kLast;
        inputs[i].sampler = i == 1 ? nullptr : &pipeline;
        inputs[i].seed = i;
        inputs[i].goes_on = true;
      }
      const auto outputs = engine->step(inputs);
      for (size_t i = 0; i < inputs.size(); ++i) {
        tokens[i] = {outputs[outputs.size() - inputs.size() + i].token};
        chosen[is_cuda ? 1 : 0].push_back(tokens[i][0]);
      }
    }
    if (is_cuda) started += steps_started();
  }
  EXPECT_EQ(chosen[0], chosen[1]);
  // In vain: where one sequence left, and behind the last.
  EXPECT_EQ(started, 75 + 2);
}

// No block for the next token: the step ahead is not made, and the error is the engine's own.
TEST(CudaEngineAhead, WhereNoBlockIsFreeTheEngineSaysSo) {
  EngineOptions options = options_on(true);
  options.max_sequences = 1;
  options.kv_bytes = Engine::load(oracle_folder("qwen3_moe"), options)->options().kv_bytes;
  options.max_sequences = 2;  // with the blocks of one
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), options);
  const std::vector<int32_t> tokens(16, 3);
  std::vector<StepInput> inputs(1);
  for (int i = 0; i < 4; ++i) {  // 64 tokens each: all blocks
    for (const SequenceId sequence :
         i == 0 ? std::vector<SequenceId>{engine->create_sequence(), engine->create_sequence()}
                : std::vector<SequenceId>{1, 2}) {
      inputs[0] = {sequence, tokens};
      inputs[0].goes_on = true;
      engine->step(inputs);
    }
  }
  EXPECT_EQ(engine->kv_blocks().first, 0);
  const std::vector<int32_t> one = {3};
  inputs[0].tokens = one;
  try {
    engine->step(inputs);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kOutOfMemory);
  }
  engine->release(1);
  EXPECT_EQ(engine->step(inputs).size(), 1U);
}

TEST(CudaEngineAhead, NothingLeftToChooseIsAnErrorThatLeavesTheEngineUsable) {
  const auto engine = make_engine(true), cpu = make_engine(false);
  SamplerOptions sampler{.temperature = 0.5F};
  for (int32_t id = 0; id < engine->summary().vocab_size; ++id) {
    sampler.logit_bias.emplace_back(id, -INFINITY);
  }
  EXPECT_THROW(generate(*engine, kPrompt, answer_options(9, sampler)), Error);
  EXPECT_EQ(generate(*engine, kPrompt, answer_options(9)).tokens,
            generate(*cpu, kPrompt, answer_options(9)).tokens);
}

}  // namespace
}  // namespace vitrine::testing
