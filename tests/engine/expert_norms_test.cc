// SPDX-License-Identifier: Apache-2.0
// Norms of what experts gave: those of the rows that a tap shows, whatever else is in the step.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/federation_fixture.h"
#include "vitrine/tap.h"

namespace vitrine::testing {
namespace {

struct KeptSlots final : TapReader {
  void read(const TapRows& rows) override {
    width = rows.width;
    values.insert(values.end(), rows.rows.begin(), rows.rows.end());
    experts.insert(experts.end(), rows.experts.begin(), rows.experts.end());
  }
  int64_t width = 0;
  std::vector<float> values;
  std::vector<int32_t> experts;
};

class ExpertNorms : public ::testing::TestWithParam<std::string> {
 protected:
  EngineOptions options() const {
    EngineOptions options = test_options(2);
    options.audit_mode = AuditMode::kDeferred;
    options.expert_norms = true;
    return options;
  }
  std::vector<TokenRecord> records_of(Engine& engine, size_t chunk) const {
    VectorSink sink;
    engine.set_audit_sink(&sink);
    const SequenceId sequence = engine.create_sequence();
    Rows rows;
    const std::vector<int32_t> ids = prompt_ids(40, engine.summary().vocab_size);
    feed(engine, sequence, ids, 0, ids.size(), chunk, rows);
    engine.release(sequence);
    engine.set_audit_sink(nullptr);
    return sink.take();
  }
};

TEST_P(ExpertNorms, AreThoseOfTheTappedRows) {
  int layer = -1;
  const auto plain = Engine::load(oracle_folder(GetParam()), options());
  for (const AuditLayout::Layer& of : plain->audit_layout().layers) {
    EXPECT_EQ(of.expert_norms >= 0, of.expert_ids >= 0);
    if (of.expert_ids >= 0) layer = of.layer;
  }
  ASSERT_GE(layer, 0);
  EngineOptions tapped = options();
  Tap tap;
  tap.layer = layer;
  tap.op = "experts";
  tap.value = "expert_slots";
  tap.side = Tap::Side::kOutput;
  tapped.taps = {tap};
  const auto engine = Engine::load(oracle_folder(GetParam()), tapped);
  KeptSlots kept;
  engine->set_tap_reader(&kept);
  const std::vector<TokenRecord> records = records_of(*engine, 0);
  size_t at = 0;
  for (const TokenRecord& record : records) {
    const LayerRecord& of = record.layers[static_cast<size_t>(layer)];
    ASSERT_EQ(of.expert_norms.size(), of.routes.size());
    const size_t width = kept.values.size() / (records.size() * of.routes.size());
    for (size_t slot = 0; slot < of.routes.size(); ++slot, ++at) {
      double squares = 0;
      for (size_t i = 0; i < width; ++i) {
        const double value = kept.values.at(at * width + i);
        squares += value * value;
      }
      ASSERT_NEAR(of.expert_norms[slot], std::sqrt(squares), 1e-6 * std::sqrt(squares) + 1e-12);
      EXPECT_GT(of.expert_norms[slot], 0);
    }
  }
  EXPECT_EQ(at * (kept.values.size() / at), kept.values.size());
}

TEST_P(ExpertNorms, HangOnNothingElse) {
  const auto engine = Engine::load(oracle_folder(GetParam()), options());
  const std::vector<TokenRecord> whole = records_of(*engine, 0);
  EngineOptions other = options();
  other.threads = 1;
  const auto second = Engine::load(oracle_folder(GetParam()), other);
  second->set_audit_mode(AuditMode::kNaive);
  for (const auto& records :
       {records_of(*engine, 7), records_of(*engine, 1), records_of(*second, 9)}) {
    ASSERT_EQ(records.size(), whole.size());
    for (size_t i = 0; i < records.size(); ++i) {
      for (size_t layer = 0; layer < whole[i].layers.size(); ++layer) {
        ASSERT_EQ(records[i].layers[layer].expert_norms, whole[i].layers[layer].expert_norms)
            << "token " << i << ", layer " << layer;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ExpertNorms,
                         ::testing::Values("qwen3_moe", "glm4_moe", "gpt_oss", "gemma4_text",
                                           "lfm2_moe", "flex_olmo", "qwen2_moe"),
                         [](const auto& info) { return info.param; });

TEST(ExpertNormsElsewhere, AreRefusedOrNotThere) {
  EngineOptions options = test_options();
  options.expert_norms = true;
  options.kernels = KernelPath::kReference;
  EXPECT_EQ(error_of([&] { Engine::load(oracle_folder("qwen3_moe"), options); }).kind(),
            ErrorKind::kUnsupported);
  options.kernels.reset();
  EXPECT_EQ(Engine::load(oracle_folder("llama"), options)->audit_layout().layers[0].expert_norms,
            -1);
  options.expert_norms = false;
  EXPECT_EQ(
      Engine::load(oracle_folder("qwen3_moe"), options)->audit_layout().layers[0].expert_norms, -1);
}

TEST_F(FederationTest, RecordsNormsOfEachSpecialistsExperts) {
  EngineOptions options = test_options();
  options.audit_mode = AuditMode::kDeferred;
  options.expert_norms = true;
  const auto federation = Federation::load(separate_, options);
  const auto alone = Engine::load(oracle_folder("qwen3_moe"), options);
  VectorSink sink, own;
  federation->set_audit_sink(&sink);
  alone->set_audit_sink(&own);
  const StepInput input{federation->create_sequence(), std::span<const int32_t>(prompt_).first(9)};
  federation->step({&input, 1});
  const StepInput same{alone->create_sequence(), input.tokens};
  alone->step({&same, 1});
  const std::vector<TokenRecord> records = sink.take(), expected = own.take();
  ASSERT_EQ(records.size(), 9U);
  for (size_t i = 0; i < records.size(); ++i) {
    for (size_t layer = 0; layer < expected[i].layers.size(); ++layer) {
      EXPECT_EQ(records[i].layers[layer].expert_norms, expected[i].layers[layer].expert_norms);
    }
  }
  federation->set_audit_sink(nullptr);
  alone->set_audit_sink(nullptr);
}

}  // namespace
}  // namespace vitrine::testing
