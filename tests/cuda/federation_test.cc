// SPDX-License-Identifier: Apache-2.0
// Federations on `--device cuda --kernels fused`, emulated, beside federations on the CPU: the
// device makes the joint.
#include "tests/cuda/cuda_federation_fixture.h"

namespace vitrine::testing {
namespace {

// Two sequences in each step, one of them forked and cut on the way.
TEST_F(CudaFederation, HasTheJointAndTheSharesOfTheCpu) {
  for (const FederationSpec* spec : all()) {
    std::vector<std::vector<float>> joints[2], states[2];
    std::vector<std::vector<SpecialistShare>> shares[2];
    for (const bool is_cuda : {false, true}) {
      EngineOptions options = options_on(is_cuda);
      options.keep_logits = options.keep_hidden_state = true;
      const auto federation = Federation::load(*spec, options);
      EXPECT_EQ(federation->summary().kernels, "fused");
      EXPECT_EQ(federation->summary().device, is_cuda ? "cuda:0" : "cpu");
      EXPECT_TRUE(federation->summary().invariant);
      std::vector<StepInput> inputs(2);
      for (StepInput& input : inputs) {
        input.sequence = federation->create_sequence();
        input.rows = StepInput::Rows::kAll;
      }
      const std::span<const int32_t> ids(prompt_);
      const auto step = [&](std::span<const int32_t> first, std::span<const int32_t> second) {
        inputs[0].tokens = first;
        inputs[1].tokens = second;
        const auto outputs = federation->step(inputs);
        ASSERT_EQ(outputs.size(), first.size() + second.size());
        for (size_t row = 0; row < outputs.size(); ++row) {
          joints[is_cuda ? 1 : 0].emplace_back(outputs[row].scores.begin(),
                                               outputs[row].scores.end());
          states[is_cuda ? 1 : 0].emplace_back(outputs[row].hidden_state.begin(),
                                               outputs[row].hidden_state.end());
          const auto of = federation->shares(row);
          shares[is_cuda ? 1 : 0].emplace_back(of.begin(), of.end());
        }
      };
      step(ids.first(7), ids.subspan(20, 2));
      step(ids.subspan(7, 1), ids.subspan(22, 5));
      federation->truncate(inputs[0].sequence, 5);
      inputs[1].sequence = federation->fork(inputs[1].sequence);
      step(ids.subspan(30, 3), ids.subspan(40, 1));
      for (const Engine* engine : federation->engines()) {
        EXPECT_EQ(engine->readback_count(), 3U) << "once a pass";
      }
    }
    ASSERT_EQ(joints[0].size(), 19U);
    for (size_t row = 0; row < joints[0].size(); ++row) {
      EXPECT_EQ(joints[0][row], joints[1][row]);
      EXPECT_EQ(joints[0][row].empty(), false);
      EXPECT_EQ(states[0][row], states[1][row]);
      EXPECT_EQ(states[0][row].empty(), spec != &gate_ && spec != &separate_gate_)
          << "the base's, which a gate reads";
      expect_same_shares(shares[0][row], shares[1][row]);
    }
  }
}

/// Sampled, or under a pattern, whose tokens are bytes.
RecordedAnswer answer_of(const FederationSpec& spec, bool is_cuda, const char* regex) {
  EngineOptions options = options_on(is_cuda);
  options.hidden_state_layers = {1};
  const auto federation = Federation::load(spec, options);
  SamplerOptions sampler{.temperature = 1.1F, .top_k = 40, .top_p = 0.95F};
  sampler.repetition_penalty = 1.2F;
  sampler.seed = 7;
  return recorded_answer(*federation, sampler, regex, 8);
}

TEST_F(CudaFederation, AnswersAndRecordsWhatTheCpuDoes) {
  for (const FederationSpec* spec : all()) {
    for (const char* regex : {static_cast<const char*>(nullptr), "(ab|cd|[0-9]){4,30}"}) {
      const RecordedAnswer cpu = answer_of(*spec, false, regex),
                           cuda = answer_of(*spec, true, regex);
      EXPECT_EQ(cpu.result.tokens, cuda.result.tokens);
      ASSERT_EQ(cpu.records.size(), cuda.records.size());
      ASSERT_GT(cpu.records.size(), 9U);
      size_t predictions = 0;
      for (size_t i = 0; i < cpu.records.size(); ++i) {
        const TokenRecord &a = cpu.records[i], &b = cuda.records[i];
        EXPECT_EQ(record_digest(a), record_digest(b)) << "record " << i;
        ASSERT_FALSE(a.hidden_states.empty());
        ASSERT_EQ(a.hidden_states.size(), b.hidden_states.size());
        for (size_t h = 0; h < a.hidden_states.size(); ++h) {
          EXPECT_EQ(a.hidden_states[h].values, b.hidden_states[h].values);
        }
        if (!a.has_prediction) continue;
        ++predictions;
        expect_same_shares(a.prediction.federation.specialists,
                           b.prediction.federation.specialists);
      }
      EXPECT_GE(predictions, cpu.result.tokens.size());
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
