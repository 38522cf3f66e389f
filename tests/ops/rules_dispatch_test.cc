// SPDX-License-Identifier: Apache-2.0
// The rule on the reference path: a pass never makes the host wait for a device's value, and what
// the recorder adds to it does not grow with the number of layers. Each check is shown to fail.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/checkpoint/folders.h"
#include "tests/ops/dispatch_rules.h"
#include "tests/ops/planted_architecture.h"
#include "tests/ops/reference_runs.h"
#include "tests/support/test_data.h"

namespace {

namespace ops = vitrine::ops;
using vitrine::AuditLevel;
using vitrine::AuditMode;
using vitrine::backend_torch::ReferenceStep;
using namespace vitrine::testing_support;

std::string oracle(const std::string& name) { return test_data("oracles/" + name); }

std::string test_name(const testing::TestParamInfo<std::string>& info) { return info.param; }

TEST(NativeFunctionsFile, IsRead) {
  const NativeFunctions& functions = NativeFunctions::of_torch();
  EXPECT_GT(functions.size(), 2500u);
  EXPECT_TRUE(functions.is_tagged("_local_scalar_dense", "data_dependent_output"));
  EXPECT_TRUE(functions.is_tagged("nonzero", "dynamic_output_shape"));
  EXPECT_TRUE(functions.is_tagged("masked_select", "dynamic_output_shape"));
  EXPECT_FALSE(functions.is_tagged("add.Tensor", "dynamic_output_shape"));
  EXPECT_TRUE(functions.has_mps_kernel("add.Tensor"));    // through structured_delegate
  EXPECT_TRUE(functions.has_mps_kernel("index_select"));  // "MPS: index_select_mps"
  EXPECT_TRUE(functions.has_mps_kernel("where.self"));    // "CPU, CUDA, MPS, MTIA: where"
  EXPECT_FALSE(functions.has_mps_kernel("geqrf"));
  EXPECT_FALSE(functions.is_composite_everywhere("geqrf"));
  EXPECT_TRUE(functions.is_composite_everywhere("matmul"));     // no dispatch entry
  EXPECT_TRUE(functions.is_composite_everywhere("logsumexp"));  // CompositeExplicitAutograd
  EXPECT_TRUE(functions.is_composite_everywhere("masked_fill.Scalar_out"));  // autogen
  EXPECT_FALSE(functions.is_composite_everywhere("add.Tensor"));
  EXPECT_EQ(functions.find("no_such_op"), nullptr);
}

class ReferencePass : public testing::TestWithParam<std::string> {};

TEST_P(ReferencePass, NeverWaitsForAValue) {
  for (const AuditMode mode : {AuditMode::kNone, AuditMode::kDeferred}) {
    const RecordedRun run = record_reference_run(oracle(GetParam()), mode, AuditLevel::kFull, {},
                                                 /*attribution=*/true);
    EXPECT_GT(run.passes.size(), 400u);  // the recorder saw the passes
    EXPECT_EQ(synchronizing_ops(run.passes, NativeFunctions::of_torch()), std::set<std::string>{});
    EXPECT_EQ(run.readbacks, std::vector<uint64_t>(run.readbacks.size(), 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, ReferencePass, testing::ValuesIn(oracle_names()),
                         test_name);

// Calls that auditing adds to each pass of the same run.
std::vector<int64_t> extra_calls(const std::string& folder, AuditMode mode, AuditLevel level,
                                 bool attribution = false) {
  const RecordedRun without = record_reference_run(folder, AuditMode::kNone, level);
  const RecordedRun with = record_reference_run(folder, mode, level, {}, attribution);
  std::vector<int64_t> extra;
  for (size_t pass = 0; pass < with.own_calls.size(); ++pass) {
    extra.push_back(static_cast<int64_t>(with.own_calls[pass]) -
                    static_cast<int64_t>(without.own_calls[pass]));
    extra.push_back(static_cast<int64_t>(with.all_calls[pass]) -
                    static_cast<int64_t>(without.all_calls[pass]));
  }
  return extra;
}

class AuditedPass : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    for (int layers : {2, 5}) {
      write_stretched_checkpoint(oracle(GetParam()), folder_ / std::to_string(layers), layers);
    }
  }
  vitrine::testing::TemporaryFolder folder_;
};

TEST_P(AuditedPass, AddsAsManyCallsForTwoLayersAsForFive) {
  for (const AuditLevel level : {AuditLevel::kStandard, AuditLevel::kFull}) {
    const auto two = extra_calls(folder_ / "2", AuditMode::kDeferred, level);
    EXPECT_GT(*std::min_element(two.begin(), two.end()), 0);
    EXPECT_EQ(two, extra_calls(folder_ / "5", AuditMode::kDeferred, level));
  }
  const auto attributed = extra_calls(folder_ / "2", AuditMode::kDeferred, AuditLevel::kStandard,
                                      /*attribution=*/true);
  EXPECT_EQ(attributed, extra_calls(folder_ / "5", AuditMode::kDeferred, AuditLevel::kStandard,
                                    /*attribution=*/true));
  // At level full with the hidden states of every layer.
  const auto full = extra_calls(folder_ / "2", AuditMode::kDeferred, AuditLevel::kFull, true);
  EXPECT_EQ(full, extra_calls(folder_ / "5", AuditMode::kDeferred, AuditLevel::kFull, true));
}

TEST_P(AuditedPass, TheNaiveRecorderBreaksBothRules) {
  const auto two = extra_calls(folder_ / "2", AuditMode::kNaive, AuditLevel::kStandard);
  const auto five = extra_calls(folder_ / "5", AuditMode::kNaive, AuditLevel::kStandard);
  for (size_t i = 0; i < two.size(); ++i) EXPECT_LT(two[i], five[i]);
  const RecordedRun run =
      record_reference_run(folder_ / "5", AuditMode::kNaive, AuditLevel::kStandard);
  for (const uint64_t readbacks : run.readbacks) EXPECT_GT(readbacks, 5u);
}

INSTANTIATE_TEST_SUITE_P(Architectures, AuditedPass, testing::ValuesIn(oracle_names()), test_name);

std::set<std::string> planted_findings(const char* name) {
  vitrine::testing::TemporaryFolder folder;
  write_stretched_checkpoint(oracle("llama"), folder / "planted", 2, name);
  const RecordedRun run =
      record_reference_run(folder / "planted", AuditMode::kNone, AuditLevel::kStandard);
  return synchronizing_ops(run.passes, NativeFunctions::of_torch());
}

constexpr char kItem[] = "planted_item";
constexpr char kBooleanIndex[] = "planted_boolean_index";
constexpr char kComparison[] = "planted_comparison";
constexpr char kHarmless[] = "planted_harmless";

TEST(PlantedOp, ThatReadsAValueIsFound) {
  plant<kItem>(
      [](ReferenceStep& step, const ops::OpNode&) { (void)step.positions.max().item<int64_t>(); });
  EXPECT_EQ(planted_findings(kItem), (std::set<std::string>{"_local_scalar_dense", "item"}));
}

TEST(PlantedOp, ThatLearnsAShapeIsFound) {
  plant<kBooleanIndex>([](ReferenceStep& step, const ops::OpNode&) {
    (void)step.positions.index({step.positions.gt(1)});
  });
  EXPECT_TRUE(planted_findings(kBooleanIndex).contains("nonzero"));
}

TEST(PlantedOp, ThatDecidesOnAValueIsFound) {
  plant<kComparison>([](ReferenceStep& step, const ops::OpNode&) {
    (void)at::equal(step.positions, step.token_ids);
  });
  EXPECT_TRUE(planted_findings(kComparison).contains("equal"));
}

TEST(PlantedOp, ThatIsHarmlessIsNot) {
  plant<kHarmless>([](ReferenceStep& step, const ops::OpNode&) { (void)step.positions.add(1); });
  EXPECT_EQ(planted_findings(kHarmless), std::set<std::string>{});
}

}  // namespace
