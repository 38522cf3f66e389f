// SPDX-License-Identifier: Apache-2.0
// MPS without a Mac: every ATen op that the reference path calls has an MPS kernel, or is composed
// of ops that have one; and no float64 tensor is ever made. Each check is shown to fail.
#include <gtest/gtest.h>

#include "tests/checkpoint/folders.h"
#include "tests/ops/dispatch_rules.h"
#include "tests/ops/planted_architecture.h"
#include "tests/ops/reference_runs.h"
#include "tests/support/test_data.h"
#include "vitrine/compress.h"

namespace {

namespace ops = vitrine::ops;
using vitrine::AuditLevel;
using vitrine::AuditMode;
using vitrine::backend_torch::ReferenceStep;
using namespace vitrine::testing_support;

const std::set<std::string> kNothing;

// Loading, passes, a fork, both recorders that a user can choose, and none.
void expect_runs_on_mps(const std::string& folder) {
  for (const AuditMode mode : {AuditMode::kNone, AuditMode::kNaive, AuditMode::kDeferred}) {
    const RecordedRun run =
        record_reference_run(folder, mode, AuditLevel::kFull, {}, /*attribution=*/true);
    EXPECT_GT(run.load.size(), 100u);
    EXPECT_GT(run.passes.size(), 400u);
    for (const auto* ops : {&run.load, &run.passes}) {
      EXPECT_EQ(ops_without_mps(*ops, NativeFunctions::of_torch()), kNothing);
      EXPECT_EQ(ops_making_float64(*ops), kNothing);
    }
  }
}

class MpsOps : public testing::TestWithParam<std::string> {};

TEST_P(MpsOps, RunTheModel) { expect_runs_on_mps(test_data("oracles/" + GetParam())); }

TEST_P(MpsOps, RunTheQuantizedModel) {
  vitrine::testing::TemporaryFolder folder;
  for (const char* scheme : {"int4", "int8"}) {
    vitrine::QuantizeOptions options;
    options.scheme = scheme;
    options.group_size = 32;
    const vitrine::QuantizeReport report =
        vitrine::quantize_checkpoint(test_data("oracles/" + GetParam()), folder / scheme, options);
    ASSERT_FALSE(report.quantized.empty());
    expect_runs_on_mps(folder / scheme);
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, MpsOps, testing::ValuesIn(oracle_names()),
                         [](const testing::TestParamInfo<std::string>& info) {
                           return info.param;
                         });

RecordedRun planted_run(const char* name) {
  vitrine::testing::TemporaryFolder folder;
  write_stretched_checkpoint(test_data("oracles/llama"), folder / "planted", 2, name);
  return record_reference_run(folder / "planted", AuditMode::kNone, AuditLevel::kStandard);
}

constexpr char kNoKernel[] = "planted_without_mps_kernel";
constexpr char kWithinComposite[] = "planted_within_a_composite_op";
constexpr char kFloat64[] = "planted_float64";
constexpr char kDoubleScalar[] = "planted_double_scalar";

TEST(MpsPlanted, AnOpWithoutAKernelIsFound) {
  plant<kNoKernel>([](ReferenceStep& step, const ops::OpNode&) { (void)at::geqrf(step.rope_cos); });
  const RecordedRun run = planted_run(kNoKernel);
  EXPECT_TRUE(ops_without_mps(run.passes, NativeFunctions::of_torch()).contains("geqrf"));
}

TEST(MpsPlanted, AnOpWithoutAKernelIsFoundWithinACompositeOp) {
  plant<kWithinComposite>(
      [](ReferenceStep& step, const ops::OpNode&) { (void)at::nuclear_norm(step.rope_cos); });
  const RecordedRun run = planted_run(kWithinComposite);
  const auto found = ops_without_mps(run.passes, NativeFunctions::of_torch());
  EXPECT_FALSE(found.empty());
  EXPECT_FALSE(found.contains("nuclear_norm"));
}

TEST(MpsPlanted, AFloat64TensorIsFound) {
  plant<kFloat64>(
      [](ReferenceStep& step, const ops::OpNode&) { (void)step.rope_cos.to(at::kDouble); });
  EXPECT_TRUE(ops_making_float64(planted_run(kFloat64).passes).contains("_to_copy"));
}

TEST(MpsPlanted, ADoubleThatIsOnlyAScalarIsNot) {
  plant<kDoubleScalar>(
      [](ReferenceStep& step, const ops::OpNode&) { (void)step.rope_cos.mul(2.5).add(0.1); });
  const RecordedRun run = planted_run(kDoubleScalar);
  EXPECT_EQ(ops_making_float64(run.passes), kNothing);
  EXPECT_EQ(ops_without_mps(run.passes, NativeFunctions::of_torch()), kNothing);
}

}  // namespace
