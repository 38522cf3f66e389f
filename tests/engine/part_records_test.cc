// SPDX-License-Identifier: Apache-2.0
// Records of an engine that is a part of a federation.
#include <cmath>

#include "engine/engine_access.h"
#include "engine/run/loaded_model.h"
#include "tests/engine/audit_passes.h"

namespace vitrine::testing {
namespace {

class PartRecords : public ::testing::TestWithParam<ModelVariant> {
 protected:
  PartRecords() : folder_(GetParam()) {}
  VariantFolder folder_;
};

TEST_P(PartRecords, RowsLeftOutLeaveTheRestAsItIs) {
  for (const KernelPath path : {KernelPath::kFused, KernelPath::kReference}) {
    for (const AuditMode mode : {AuditMode::kNaive, AuditMode::kDeferred}) {
      const EngineOptions options = audit_options(path, mode, AuditLevel::kFull);
      Passes whole, without;
      run_passes(*Engine::load(folder_.path(), options), whole);
      const auto engine =
          engine::EngineAccess::load(folder_.path(), options, {.record_rows = false});
      EXPECT_EQ(engine->audit_layout().row_words, 0);
      run_passes(*engine, without);
      engine->set_audit_sink(nullptr);
      EXPECT_EQ(whole.tokens, without.tokens);
      EXPECT_TRUE(same_bits(whole.rows, without.rows, whole.rows.size()));
      const std::vector<TokenRecord> with_rows = whole.sink.take();
      const std::vector<TokenRecord> records = without.sink.take();
      ASSERT_EQ(records.size(), with_rows.size());
      for (size_t i = 0; i < records.size(); ++i) {
        EXPECT_TRUE(std::isnan(records[i].prediction.logprob) || !records[i].has_prediction);
        EXPECT_EQ(records[i].prediction.token, with_rows[i].prediction.token);
        ASSERT_EQ(records[i].layers.size(), with_rows[i].layers.size());
        for (size_t layer = 0; layer < records[i].layers.size(); ++layer) {
          const LayerRecord &a = records[i].layers[layer], &b = with_rows[i].layers[layer];
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

std::vector<ModelVariant> part_variants() {
  std::vector<ModelVariant> all;
  for (const std::string& name : oracle_names()) all.push_back({name, "", 0});
  all.push_back({"qwen3_moe", "int4", 32});
  all.push_back({"granitemoe", "int8", 64});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Models, PartRecords, ::testing::ValuesIn(part_variants()), variant_name);

}  // namespace
}  // namespace vitrine::testing
