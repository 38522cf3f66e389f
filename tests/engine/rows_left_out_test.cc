// SPDX-License-Identifier: Apache-2.0
// Records that say nothing of rows, as a federation asks of its engines.
#include <cmath>

#include "engine/step_runner.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

struct RecordedSteps {
  Rows rows;
  std::vector<int32_t> tokens;
  std::vector<TokenRecord> records;
};

RecordedSteps run_steps(const EngineOptions& options, bool record_rows) {
  engine::LoadRequest request;
  request.record_rows = record_rows;
  const auto engine = engine::EngineAccess::load(oracle_folder("qwen3_moe"), options, request);
  EXPECT_EQ(engine->audit_layout().row_words > 0, record_rows);
  VectorSink sink;
  engine->set_audit_sink(&sink);
  RecordedSteps result;
  const std::vector<int32_t> ids = prompt_ids(13, engine->summary().vocab_size);
  StepInput input;
  input.sequence = engine->create_sequence();
  input.tokens = ids;
  input.rows = StepInput::Rows::kAll;
  for (int i = 0; i < 3; ++i) {
    const std::span<const StepOutput> outputs = engine->step({&input, 1});
    keep_rows(outputs, input.sequence, result.rows);
    for (const StepOutput& output : outputs) result.tokens.push_back(output.token);
    input.tokens = std::span(result.tokens).last(1);
  }
  result.records = sink.take();
  engine->set_audit_sink(nullptr);
  return result;
}

TEST(RowsLeftOut, LeaveTheRestAsItIs) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    for (const AuditMode mode : {AuditMode::kNaive, AuditMode::kDeferred}) {
      EngineOptions options = test_options();
      options.kernels = path;
      options.audit_mode = mode;
      options.audit_level = AuditLevel::kFull;
      const RecordedSteps whole = run_steps(options, true), without = run_steps(options, false);
      EXPECT_EQ(whole.tokens, without.tokens);
      EXPECT_TRUE(same_bits(whole.rows, without.rows, whole.rows.size()));
      ASSERT_EQ(without.records.size(), whole.records.size());
      for (size_t i = 0; i < without.records.size(); ++i) {
        const TokenRecord &found = without.records[i], &expected = whole.records[i];
        EXPECT_TRUE(std::isnan(found.prediction.logprob) || !found.has_prediction);
        EXPECT_EQ(found.prediction.token, expected.prediction.token);
        ASSERT_EQ(found.layers.size(), expected.layers.size());
        for (size_t layer = 0; layer < found.layers.size(); ++layer) {
          const LayerRecord &a = found.layers[layer], &b = expected.layers[layer];
          EXPECT_EQ(a.residual_norm, b.residual_norm);
          EXPECT_EQ(a.router_probs, b.router_probs);
          ASSERT_EQ(a.routes.size(), b.routes.size());
          for (size_t slot = 0; slot < a.routes.size(); ++slot) {
            EXPECT_EQ(a.routes[slot].expert, b.routes[slot].expert);
            EXPECT_EQ(a.routes[slot].weight, b.routes[slot].weight);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::testing
