// SPDX-License-Identifier: Apache-2.0
// Federations of adapters whose device starts a step with the joint's choice before that is on the
// host, emulated, beside federations on the CPU.
#include "tests/cuda/cuda_federation_fixture.h"
#include "tests/cuda/emulated_counts.h"
#include "tests/support/in_sequence.h"

namespace vitrine::testing {
namespace {

const SamplerOptions kDraws{.temperature = 0.9F, .top_k = 30, .top_p = 0.9F};

class CudaFederationAhead : public CudaFederation {};

/// Expects the same answer on both devices; returns how many steps the device started more than
/// there were tokens.
int64_t expect_same_answer(const FederationSpec& spec, const SamplerOptions& sampler,
                           const char* regex, int tokens) {
  const auto cpu = Federation::load(spec, options_on(false));
  const auto cuda = Federation::load(spec, options_on(true));
  const int64_t before = steps_started();
  const RecordedAnswer found = recorded_answer(*cuda, sampler, regex, tokens);
  const int64_t steps = steps_started() - before;
  const RecordedAnswer expected = recorded_answer(*cpu, sampler, regex, tokens);
  EXPECT_EQ(found.result.tokens, expected.result.tokens);
  EXPECT_EQ(found.records.size(), expected.records.size());
  for (size_t i = 0; i < std::min(found.records.size(), expected.records.size()); ++i) {
    EXPECT_EQ(record_digest(found.records[i]), record_digest(expected.records[i])) << i;
  }
  return steps - static_cast<int64_t>(found.result.tokens.size());
}

TEST_F(CudaFederationAhead, NoStepIsStartedInVain) {
  for (const FederationSpec* spec : {&adapted_, &adapted_product_, &gate_, &scaled_}) {
    EXPECT_EQ(expect_same_answer(*spec, {.temperature = 0}, nullptr, 5), 0);
  }
  // The 58 tokens behind a prompt of 9 cross a block of keys and values.
  EXPECT_EQ(expect_same_answer(scaled_, kDraws, nullptr, 58), 0);
  EXPECT_EQ(expect_same_answer(gate_, kDraws, "(ab|cd|[0-9]){4,30}", 12), 0);
  SamplerOptions looks_back = kDraws;
  looks_back.repetition_penalty = 1.3F;
  EXPECT_EQ(expect_same_answer(adapted_product_, looks_back, nullptr, 9), 0);
}

TEST_F(CudaFederationAhead, AnEndThatNobodyKnewOfLeavesNothing) {
  for (const FederationSpec* spec : {&adapted_product_, &gate_}) {
    const auto cpu = Federation::load(*spec, options_on(false));
    const auto cuda = Federation::load(*spec, options_on(true));
    GenerateOptions options;
    options.max_new_tokens = 12;
    options.ignore_end_of_text = true;
    options.sampler = kDraws;
    const std::vector<int32_t> prompt = {1, 2, 3, 4, 5};
    const std::vector<int32_t> whole = generate(*cpu, prompt, options).tokens;
    options.ignore_end_of_text = false;
    options.stop_token_ids = {whole[7]};
    const SequenceId expected = cpu->create_sequence(), sequence = cuda->create_sequence();
    const GenerateResult stopped = generate(*cpu, prompt, in_sequence(expected, options));
    ASSERT_LT(stopped.tokens.size(), whole.size());
    VectorSink sink;
    cuda->set_audit_sink(&sink);
    const int64_t before = steps_started();
    EXPECT_EQ(generate(*cuda, prompt, in_sequence(sequence, options)).tokens, stopped.tokens);
    EXPECT_EQ(steps_started() - before, static_cast<int64_t>(stopped.tokens.size()) + 1)
        << "one step was under way when the end came";
    EXPECT_EQ(sink.take().size(), prompt.size() + stopped.tokens.size() - 1);
    EXPECT_EQ(cuda->length(sequence), cpu->length(expected));
    // The sequence goes on as if nothing had been.
    const std::vector<int32_t> more = {stopped.tokens.back(), 9, 8};
    EXPECT_EQ(generate(*cuda, more, in_sequence(sequence, options)).tokens,
              generate(*cpu, more, in_sequence(expected, options)).tokens);
    cuda->set_audit_sink(nullptr);
  }
}

/// Several sequences, one scored where it begins; one leaves, one is forked and cut.
TEST_F(CudaFederationAhead, ABatchGoesOn) {
  for (const FederationSpec* spec : {&adapted_, &gate_, &separate_}) {
    std::vector<int32_t> chosen[2];
    std::vector<SpecialistShare> shares[2];
    int64_t started = 0;
    constexpr int kSteps = 11;
    for (const bool is_cuda : {false, true}) {
      const auto federation = Federation::load(*spec, options_on(is_cuda));
      SamplerPipeline pipeline = SamplerPipeline::from_options(kDraws);
      std::vector<std::vector<int32_t>> tokens = {{1, 2, 3}, {4}, {5, 6, 7, 8}};
      std::vector<StepInput> inputs(3);
      for (StepInput& input : inputs) input.sequence = federation->create_sequence();
      if (is_cuda) started = -steps_started();
      for (int step = 0; step < kSteps; ++step) {
        if (step == 4) inputs.pop_back();
        if (step == 8) {
          federation->truncate(inputs[0].sequence, 4);
          inputs[1].sequence = federation->fork(inputs[1].sequence);
        }
        for (size_t i = 0; i < inputs.size(); ++i) {
          inputs[i].tokens = tokens[i];
          inputs[i].rows = step == 0 && i == 0 ? StepInput::Rows::kAll : StepInput::Rows::kLast;
          inputs[i].sampler = i == 1 ? nullptr : &pipeline;
          inputs[i].seed = i;
          inputs[i].goes_on = true;
        }
        const auto outputs = federation->step(inputs);
        for (size_t row = 0; row < outputs.size(); ++row) {
          const auto of = federation->shares(row);
          shares[is_cuda ? 1 : 0].insert(shares[is_cuda ? 1 : 0].end(), of.begin(), of.end());
        }
        for (size_t i = 0; i < inputs.size(); ++i) {
          tokens[i] = {outputs[outputs.size() - inputs.size() + i].token};
          chosen[is_cuda ? 1 : 0].push_back(tokens[i][0]);
        }
      }
      if (is_cuda) started += steps_started();
    }
    EXPECT_EQ(chosen[0], chosen[1]);
    expect_same_shares(shares[0], shares[1]);
    // In vain: where a sequence left, where one was cut, and behind the last. Of two
    // separate checkpoints each takes its steps, as their joint does, and none is ahead.
    EXPECT_EQ(started, spec == &separate_ ? 3 * kSteps : kSteps + 3);
  }
}

TEST_F(CudaFederationAhead, WhatTheHostReadsKeepsTheNextStepBack) {
  EngineOptions options = options_on(true);
  options.keep_logits = true;
  const auto federation = Federation::load(adapted_, options);
  const int64_t before = steps_started();
  std::vector<int32_t> token = {3};
  StepInput input{federation->create_sequence(), token};
  input.goes_on = true;
  for (int step = 0; step < 4; ++step) {
    input.tokens = token;
    token[0] = federation->step({&input, 1})[0].token;
  }
  EXPECT_EQ(steps_started() - before, 4);
}

}  // namespace
}  // namespace vitrine::testing
