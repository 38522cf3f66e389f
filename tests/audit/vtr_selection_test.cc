// SPDX-License-Identifier: Apache-2.0
// What routers with scores chose by, in sealed logs and left out of them.
#include <cmath>

#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine::audit_test {
namespace {

using VtrSelection = VtrTest;

// A router's kind is told where its scores are not: of runs that cannot record them.
TEST_F(VtrSelection, ARoutersKindWithoutItsScores) {
  Rng rng(8);
  AuditLayout layout =
      make_layout({{2, 8, RouterKind::kSigmoidScores}, {3, 9}}, AuditLevel::kStandard, rng);
  layout.layers[0].router_scores = -1;
  write_log(at("run.vtr"), layout, 20);
  VtrReader reader(at("run.vtr"));
  EXPECT_EQ(reader.header().layers[0].router, RouterKind::kSigmoidScores);
  EXPECT_EQ(reader.header().layers[1].router, RouterKind::kPlain);
  for (const TokenRecord& record : read_records(at("run.vtr"))) {
    EXPECT_EQ(record.layers[0].router, RouterKind::kSigmoidScores);
    EXPECT_TRUE(record.layers[0].selection.empty());
  }
  EXPECT_EQ(verify_vtr(at("run.vtr")).seal, VtrReport::Seal::kComplete);
}

// Scores and keys are a second group of the column `routing`: where that is left out, so are they.
TEST_F(VtrSelection, ScoresGoWithTheRouting) {
  Rng rng(9);
  const AuditLayout layout =
      make_layout({{2, 8, RouterKind::kSigmoidScores}, {2, 9}}, AuditLevel::kStandard, rng);
  const auto expected = write_log(at("run.vtr"), layout, 40);
  redact_vtr(at("run.vtr"), at("less.vtr"),
             {{"routing"}, [](uint64_t, int64_t position) { return position < 10; }});
  const VtrReport report = verify_vtr(at("less.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  EXPECT_EQ(report.redacted_columns, std::vector<std::string>{"routing"});
  const std::vector<TokenRecord> records = read_records(at("less.vtr"));
  ASSERT_EQ(records.size(), expected.size());
  for (size_t i = 0; i < records.size(); ++i) {
    if (i >= 10) {
      expect_record(records[i], expected[i], LogDetail::kStandard);
      continue;
    }
    ASSERT_EQ(records[i].layers[0].selection.size(), 2u);
    EXPECT_TRUE(std::isnan(records[i].layers[0].selection[0].score));
    EXPECT_TRUE(std::isnan(records[i].layers[0].selection[1].key));
    EXPECT_TRUE(records[i].layers[1].selection.empty());
  }
}

AuditLayout layout_with_norms(AuditLevel level, Rng& rng) {
  AuditLayout layout =
      make_layout({{2, 8, RouterKind::kSigmoidScores}, {0, 0}, {3, 9}}, level, rng);
  for (AuditLayout::Layer& layer : layout.layers) {
    if (layer.expert_ids < 0) continue;
    layer.expert_norms = layout.token_words;
    layout.token_words += layer.top_k;
  }
  return layout;
}

// Norms of what experts gave are a second group of the column `norms`.
TEST_F(VtrSelection, NormsOfExpertsGoWithTheNorms) {
  for (const AuditLevel level : {AuditLevel::kStandard, AuditLevel::kFull}) {
    Rng rng(12);
    const bool is_full = level == AuditLevel::kFull;
    VtrOptions options;
    options.detail = is_full ? LogDetail::kFull : LogDetail::kStandard;
    const auto expected = write_log(at("run.vtr"), layout_with_norms(level, rng), 40, options);
    const std::vector<TokenRecord> whole = read_records(at("run.vtr"));
    ASSERT_EQ(whole.size(), expected.size());
    for (size_t i = 0; i < whole.size(); ++i) {
      ASSERT_EQ(whole[i].layers[0].expert_norms.size(), 2u);
      EXPECT_TRUE(whole[i].layers[1].expert_norms.empty());
      ASSERT_EQ(whole[i].layers[2].expert_norms.size(), 3u);
      expect_record(whole[i], expected[i], options.detail);
    }
    redact_vtr(at("run.vtr"), at("less.vtr"),
               {{"norms"}, [](uint64_t, int64_t position) { return position < 10; }}, {}, true);
    const VtrReport report = verify_vtr(at("less.vtr"));
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
    const std::vector<TokenRecord> records = read_records(at("less.vtr"));
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_TRUE(std::isnan(records[i].layers[0].expert_norms[0]));
      EXPECT_EQ(records[i].layers[0].selection.size(), 2u);
    }
    expect_record(records[20], expected[20], options.detail);
  }
}

// Without a federation the head ends with the routers: their number, a byte for each layer.
TEST_F(VtrSelection, ImpossibleRoutersAreRefused) {
  Rng rng(10);
  write_log(at("run.vtr"),
            make_layout({{2, 8, RouterKind::kSigmoidScores}, {0, 0}}, AuditLevel::kStandard, rng),
            5);
  audit::FrameReader frames(at("run.vtr"));
  const audit::ByteSpan head = frames.head_frame().head;
  const auto parse_with = [&](std::vector<uint8_t> end) {
    audit::Bytes bytes(head.begin(), head.end() - 3);
    bytes.insert(bytes.end(), end.begin(), end.end());
    VtrHeader header;
    std::vector<audit::GroupSpec> groups;
    audit::parse_header(bytes, header, groups);
    return header;
  };
  const VtrHeader header = parse_with({2, 6, 0});
  EXPECT_EQ(header.layers[0].router, RouterKind::kSigmoidScores);
  EXPECT_EQ(header.layers[0].router_scores, 0);
  EXPECT_EQ(parse_with({2, 1, 0}).layers[0].router, RouterKind::kSoftmaxScores);
  EXPECT_EQ(parse_with({2, 1, 0}).layers[0].router_scores, -1);
  EXPECT_EQ(parse_with({2, 8, 0}).layers[0].expert_norms, 0);
  EXPECT_EQ(parse_with({2, 14, 0}).layers[0].router_scores, 0);
  for (const std::vector<uint8_t>& end :
       std::vector<std::vector<uint8_t>>{{2, 6, 1},      // of a dense layer
                                         {2, 6, 4},      // the same
                                         {2, 4, 0},      // a plain router's scores
                                         {2, 3, 0},      // no such kind
                                         {2, 7, 0},      // the same
                                         {2, 6, 8},      // norms of a dense layer
                                         {2, 22, 0},     // a bit that means nothing
                                         {2, 0, 0},      // none at all
                                         {1, 6},         // too few
                                         {3, 6, 0, 0},   // too many
                                         {2, 6},         // cut
                                         {2, 6, 0, 0}})  // bytes behind them
  {
    EXPECT_THROW(parse_with(end), Error) << ::testing::PrintToString(end);
  }
}

}  // namespace
}  // namespace vitrine::audit_test
