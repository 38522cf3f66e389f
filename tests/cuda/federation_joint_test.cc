// SPDX-License-Identifier: Apache-2.0
// A federation's joint that the device makes and chooses by: what comes back, and when the host has
// to do it.
#include "tests/cuda/cuda_federation_fixture.h"
#include "tests/cuda/emulated_counts.h"

namespace vitrine::testing {
namespace {

EngineOptions joint_options(bool is_cuda) {
  EngineOptions options = options_on(is_cuda);
  options.audit_mode = AuditMode::kNone;
  return options;
}

/// Everything that a federation says of a step's rows but for the rows.
struct Account {
  std::vector<int32_t> tokens;
  std::vector<SpecialistShare> shares;
  std::vector<ConstraintDecision> constraints;
  size_t bytes = 0;      // that came back
  bool has_rows = true;  // the joint's, in every output
};

/// Steps of three sequences: one scored and then greedy, one drawn, one under a mask. All in one
/// step, with one row and several.
Account account_of(const FederationSpec& spec, const EngineOptions& options,
                   const SamplerOptions& sampler) {
  const auto federation = Federation::load(spec, options);
  const auto vocab = static_cast<size_t>(federation->summary().vocab_size);
  std::vector<uint32_t> mask((vocab + 31) / 32);
  for (const size_t id : {3, 40, 77, 90}) mask[id / 32] |= 1U << (id % 32);
  SamplerPipeline pipeline = SamplerPipeline::from_options(sampler);
  std::vector<StepInput> inputs(3);
  std::vector<std::vector<int32_t>> tokens = {{1, 2, 3, 4}, {5, 6}, {7}};
  for (size_t i = 0; i < inputs.size(); ++i) inputs[i].sequence = federation->create_sequence();
  inputs[1].sampler = &pipeline;
  inputs[1].seed = 11;
  inputs[2].allowed_tokens = mask;
  Account account;
  const bool is_cuda = options.device.kind == DeviceKind::kCuda;
  const size_t before = is_cuda ? bytes_to_host() : 0;
  for (int step = 0; step < 5; ++step) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i].tokens = tokens[i];
      inputs[i].rows = i == 0 ? StepInput::Rows::kAll : StepInput::Rows::kLast;
    }
    if (step == 3) inputs[2].rows = StepInput::Rows::kNone;
    const auto outputs = federation->step(inputs);
    for (size_t row = 0; row < outputs.size(); ++row) {
      account.tokens.push_back(outputs[row].token);
      account.constraints.push_back(outputs[row].constraint);
      const auto of = federation->shares(row);
      account.shares.insert(account.shares.end(), of.begin(), of.end());
      account.has_rows = account.has_rows && !outputs[row].scores.empty();
    }
    tokens = {{outputs[outputs.size() - (step == 3 ? 2 : 3)].token, 9},
              {outputs[outputs.size() - (step == 3 ? 1 : 2)].token},
              {step == 3 ? 8 : outputs.back().token}};
  }
  account.bytes = is_cuda ? bytes_to_host() - before : 0;
  return account;
}

void expect_same(const Account& cpu, const Account& cuda) {
  EXPECT_EQ(cpu.tokens, cuda.tokens);
  expect_same_shares(cpu.shares, cuda.shares);
  ASSERT_EQ(cpu.constraints.size(), cuda.constraints.size());
  for (size_t i = 0; i < cpu.constraints.size(); ++i) {
    EXPECT_EQ(cpu.constraints[i].allowed, cuda.constraints[i].allowed);
    EXPECT_EQ(cpu.constraints[i].first_ruled_out, cuda.constraints[i].first_ruled_out);
  }
}

const SamplerOptions kDraws{.temperature = 0.9F, .top_k = 30, .top_p = 0.9F};

// A step of seven rows of the joint at most: less than one row of logits for each of them.
TEST_F(CudaFederation, ChoosesOnTheDeviceAndRowsStayThere) {
  for (const FederationSpec* spec : all()) {
    SamplerOptions sampler = kDraws;
    sampler.repetition_penalty = 1.3F;
    const Account cpu = account_of(*spec, joint_options(false), sampler);
    const Account cuda = account_of(*spec, joint_options(true), sampler);
    expect_same(cpu, cuda);
    EXPECT_TRUE(cpu.has_rows);
    EXPECT_FALSE(cuda.has_rows) << "nobody asked for them";
    EXPECT_LT(cuda.bytes / cuda.tokens.size(), 520U) << "ids, facts and accounts";
  }
}

// Mirostat has no device form, and a host that is asked to sample does.
TEST_F(CudaFederation, TheHostChoosesWhereTheDeviceCannot) {
  for (const FederationSpec* spec : {&adapted_product_, &separate_gate_}) {
    const size_t rows_of_a_joint = spec->specialists.size() * 256 * sizeof(float);
    const SamplerOptions mirostat{.mirostat = 2};
    EngineOptions on_host = joint_options(true);
    on_host.sample_on_device = false;
    const Account states = account_of(*spec, joint_options(true), mirostat);
    const Account asked = account_of(*spec, on_host, kDraws);
    expect_same(account_of(*spec, joint_options(false), mirostat), states);
    expect_same(account_of(*spec, joint_options(false), kDraws), asked);
    for (const Account* account : {&states, &asked}) {
      EXPECT_TRUE(account->has_rows);
      EXPECT_GE(account->bytes / account->tokens.size(), rows_of_a_joint);
    }
  }
}

TEST_F(CudaFederation, NothingLeftToChooseIsAnErrorThatSaysSo) {
  const auto federation = Federation::load(adapted_, joint_options(true));
  SamplerOptions sampler{.temperature = 0.5F};
  for (int32_t id = 0; id < federation->summary().vocab_size; ++id) {
    sampler.logit_bias.emplace_back(id, -INFINITY);
  }
  SamplerPipeline pipeline = SamplerPipeline::from_options(sampler);
  StepInput input{federation->create_sequence(), prompt_};
  input.tokens = input.tokens.first(3);
  input.sampler = &pipeline;
  const Error error = error_of([&] { federation->step({&input, 1}); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"nothing that has a probability"})) << error.what();
  EXPECT_EQ(federation->length(input.sequence), 0) << "the step was undone";
  input.sampler = nullptr;
  EXPECT_EQ(federation->step({&input, 1}).size(), 1U);
}

/// Lets the first specialist speak alone.
class FirstAlone final : public Combiner {
 public:
  std::string_view name() const override { return "first"; }
  void combine(const CombinerInput& input, std::span<float> joint) override {
    const SpecialistRow& row = input.specialists[0];
    for (size_t t = 0; t < joint.size(); ++t) {
      joint[t] = static_cast<float>(double{row.logits[t]} - row.log_sum_exp);
    }
  }
  JointScore explain(const CombinerInput& input, int32_t token,
                     std::span<SpecialistShare> shares) override {
    for (size_t i = 0; i < shares.size(); ++i) {
      const SpecialistRow& row = input.specialists[i];
      const double alone = i == 0 ? 1.0 : 0.0;
      shares[i] = {double{row.logits[static_cast<size_t>(token)]} - row.log_sum_exp, alone, alone};
    }
    return {shares[0].logprob, 0.0};
  }
};

TEST_F(CudaFederation, AHostsCombinerHasTheRows) {
  std::vector<std::vector<float>> rows;
  for (const bool is_cuda : {false, true}) {
    const auto federation =
        Federation::load(adapted_, joint_options(is_cuda), std::make_unique<FirstAlone>());
    EXPECT_TRUE(federation->options().keep_logits) << "the rows are on the host anyway";
    StepInput input{federation->create_sequence(), prompt_};
    input.tokens = input.tokens.first(5);
    const auto outputs = federation->step({&input, 1});
    rows.emplace_back(outputs[0].scores.begin(), outputs[0].scores.end());
    EXPECT_EQ(federation->shares(0)[0].share, 1.0);
  }
  EXPECT_FALSE(rows[0].empty());
  EXPECT_EQ(rows[0], rows[1]);
}

}  // namespace
}  // namespace vitrine::testing
