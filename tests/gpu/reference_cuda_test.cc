// SPDX-License-Identifier: Apache-2.0
// The reference path on a CUDA device. Skipped, never passed, where there is none.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/ops/reference_runs.h"
#include "tests/support/test_data.h"
#include "vitrine/engine.h"

namespace {

using namespace vitrine::testing_support;
using vitrine::AuditLevel;
using vitrine::AuditMode;

constexpr size_t kMaxContext = 128;
const vitrine::Device kCuda{vitrine::DeviceKind::kCuda, 0};

std::string oracle(const std::string& name) { return test_data("oracles/" + name); }

class ReferenceCuda : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    std::ifstream(oracle(GetParam()) + "/oracle.json") >> expected_;
    atol_ = expected_.at("atol").get<double>();
    vitrine::EngineOptions options;
    if (atol_ > 1e-3) {  // the first ones were made with frequencies that were rounded to bfloat16
      options.rope_frequencies = vitrine::DType::kBF16;
      atol_ = 2e-4;
    }
    options.device = kCuda;
    options.kernels = vitrine::KernelPath::kReference;
    options.max_context = kMaxContext;
    options.max_logit_rows = kMaxContext;
    options.keep_logits = true;
    try {
      engine_ = vitrine::Engine::load(oracle(GetParam()), options);
    } catch (const vitrine::Error& error) {
      if (error.kind() != vitrine::ErrorKind::kUnavailable) throw;
      GTEST_SKIP() << error.what();
    }
  }

  // logits_last, token_logprobs and the greedy ids, each within the oracle's tolerance.
  void expect_oracle() {
    const auto tokens = expected_.at("tokens").get<std::vector<int32_t>>();
    const auto logprobs = expected_.at("token_logprobs").get<std::vector<double>>();
    const auto logits_last = expected_.at("logits_last").get<std::vector<double>>();

    const vitrine::SequenceId sequence = engine_->create_sequence();
    vitrine::StepInput prompt{sequence, tokens};
    prompt.rows = vitrine::StepInput::Rows::kAll;
    const auto outputs = engine_->step({&prompt, 1});
    ASSERT_EQ(outputs.size(), tokens.size());
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto logits = outputs[i].scores;
      const double largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (const float logit : logits) sum += std::exp(logit - largest);
      const double logprob = logits[static_cast<size_t>(tokens[i + 1])] - largest - std::log(sum);
      EXPECT_NEAR(logprob, logprobs[i], atol_) << "token " << i;
    }
    const auto last = outputs.back().scores;
    ASSERT_EQ(last.size(), logits_last.size());
    for (size_t i = 0; i < last.size(); ++i) EXPECT_NEAR(last[i], logits_last[i], atol_);

    std::vector<int32_t> greedy = {outputs.back().token};
    const auto expected_greedy = expected_.at("greedy").get<std::vector<int32_t>>();
    while (greedy.size() < std::min<size_t>(expected_greedy.size(), kMaxContext - tokens.size())) {
      const vitrine::StepInput next{sequence, std::span(greedy).last(1)};
      greedy.push_back(engine_->step({&next, 1})[0].token);
    }
    EXPECT_TRUE(std::equal(greedy.begin(), greedy.end(), expected_greedy.begin()));
    engine_->release(sequence);
  }

  nlohmann::json expected_;
  double atol_ = 0;
  std::unique_ptr<vitrine::Engine> engine_;
};

TEST_P(ReferenceCuda, AgreesWithItsOracle) { expect_oracle(); }

TEST_P(ReferenceCuda, StaysFloat32WhereTheHostAllowsTf32) {
  at::Context& context = at::globalContext();
  const auto before = context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
  context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL,
                              at::Float32Precision::TF32);
  expect_oracle();
  EXPECT_EQ(context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL),
            at::Float32Precision::TF32);
  context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL, before);
}

TEST_P(ReferenceCuda, OnePassMakesOneCopyEachWay) {
  for (const AuditMode mode : {AuditMode::kNone, AuditMode::kDeferred}) {
    const RecordedRun run =
        record_reference_run(oracle(GetParam()), mode, AuditLevel::kFull, kCuda);
    EXPECT_EQ(run.readbacks, std::vector<uint64_t>(run.readbacks.size(), 1));
    // A copy passes through several ops, one inside the other; this is one of them.
    size_t to_host = 0, to_device = 0;
    for (const DispatchedOp& op : std::span(run.passes).first(run.num_plain_ops)) {
      to_host += op.to_host && op.name == "_to_copy" ? 1 : 0;
      to_device += op.to_device && op.name == "_to_copy" ? 1 : 0;
    }
    EXPECT_EQ(to_host, run.readbacks.size());
    EXPECT_EQ(to_device, run.readbacks.size());
  }
}

void expect_same(const vitrine::TokenRecord& a, const vitrine::TokenRecord& b) {
  ASSERT_EQ(a.token, b.token);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    EXPECT_FLOAT_EQ(a.layers[i].residual_norm, b.layers[i].residual_norm);
    EXPECT_EQ(a.layers[i].router_probs, b.layers[i].router_probs);
    ASSERT_EQ(a.layers[i].routes.size(), b.layers[i].routes.size());
    for (size_t k = 0; k < a.layers[i].routes.size(); ++k) {
      EXPECT_EQ(a.layers[i].routes[k].expert, b.layers[i].routes[k].expert);
      EXPECT_EQ(a.layers[i].routes[k].weight, b.layers[i].routes[k].weight);
    }
  }
  ASSERT_EQ(a.has_prediction, b.has_prediction);
  if (!a.has_prediction) return;
  EXPECT_EQ(a.prediction.token, b.prediction.token);
  EXPECT_EQ(a.prediction.logprob, b.prediction.logprob);
  EXPECT_EQ(a.prediction.entropy, b.prediction.entropy);
  EXPECT_EQ(a.prediction.logits_digest, b.prediction.logits_digest);
  ASSERT_EQ(a.prediction.alternatives.size(), b.prediction.alternatives.size());
  for (size_t i = 0; i < a.prediction.alternatives.size(); ++i) {
    EXPECT_EQ(a.prediction.alternatives[i].token, b.prediction.alternatives[i].token);
    EXPECT_EQ(a.prediction.alternatives[i].logprob, b.prediction.alternatives[i].logprob);
  }
}

TEST_P(ReferenceCuda, BothRecordersSeeTheSame) {
  const RecordedRun deferred =
      record_reference_run(oracle(GetParam()), AuditMode::kDeferred, AuditLevel::kFull, kCuda);
  const RecordedRun naive =
      record_reference_run(oracle(GetParam()), AuditMode::kNaive, AuditLevel::kFull, kCuda);
  for (const uint64_t readbacks : naive.readbacks) EXPECT_GT(readbacks, 1u);
  ASSERT_FALSE(deferred.records.empty());
  ASSERT_EQ(deferred.records.size(), naive.records.size());
  for (size_t i = 0; i < deferred.records.size(); ++i) {
    expect_same(deferred.records[i], naive.records[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, ReferenceCuda, testing::ValuesIn(oracle_names()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

}  // namespace
