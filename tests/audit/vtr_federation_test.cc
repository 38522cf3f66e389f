// A federation's shares in a `.vtr` and in JSON: kept bit for bit at every level, and what a head
// may not say.
#include <gtest/gtest.h>

#include <cstring>

#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;

AuditLayout federated_layout(AuditLevel level = AuditLevel::kStandard) {
  AuditLayout layout = four_layers(level);
  layout.federation = {{"moss", "fern", "reed"}, "mixture", ShareKind::kResponsibility, -1};
  layout.federation.values = layout.row_words + 1;
  layout.row_words = layout.federation.values + layout.federation.num_words();
  return layout;
}

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof(a)) == 0; }

/// Passes of one sequence whose rows have numbers of their own; what decode_pass() says of them.
std::vector<TokenRecord> send_federated(AuditSink& sink, const AuditLayout& layout) {
  Rng rng(5);
  std::vector<TokenRecord> expected;
  for (int32_t position = 0; position < 60; position += 3) {
    BuiltPass built = build_step(layout, 0, 1, position, 3, rng);
    AuditPassHeader header;
    std::memcpy(&header, built.bytes.data(), sizeof(header));
    const size_t rows_at = 24 + 24 * size_t{3} + 4 * size_t{header.num_rows};
    for (size_t row = 0; row < header.num_rows; ++row) {
      for (int32_t i = 0; i < layout.federation.num_words() / 2; ++i) {
        const size_t word = row * static_cast<size_t>(layout.row_words) +
                            static_cast<size_t>(layout.federation.values + 2 * i);
        put(built.bytes, rows_at + 4 * word, -0.1 * (i + 1) - position / 7.0);
      }
    }
    send(sink, built.bytes);
    for (TokenRecord& record : decode_pass(layout, built.bytes)) {
      expected.push_back(std::move(record));
    }
  }
  return expected;
}

void expect_same(const FederationRecord& want, const FederationRecord& got) {
  ASSERT_EQ(got.specialists.size(), want.specialists.size());
  for (size_t i = 0; i < want.specialists.size(); ++i) {
    EXPECT_TRUE(same_bits(got.specialists[i].logprob, want.specialists[i].logprob));
    EXPECT_TRUE(same_bits(got.specialists[i].weight, want.specialists[i].weight));
    EXPECT_TRUE(same_bits(got.specialists[i].share, want.specialists[i].share));
  }
  EXPECT_TRUE(same_bits(got.joint, want.joint));
  EXPECT_TRUE(same_bits(got.log_normaliser, want.log_normaliser));
  EXPECT_TRUE(same_bits(got.residual, want.residual));
}

TEST_F(VtrTest, SharesComeBackBitForBitAtEveryLevel) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    const AuditLayout layout =
        federated_layout(detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard);
    const std::string path = at(std::string(log_detail_name(detail)) + ".vtr");
    VtrOptions options;
    options.detail = detail;
    VtrLog log(path, some_header(), options, piece);
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    const std::vector<TokenRecord> expected = send_federated(log.sink(), layout);
    log.finish("length");
    VtrReader reader(path);
    EXPECT_EQ(reader.header().federation.specialists, layout.federation.specialists);
    EXPECT_EQ(reader.header().federation.combiner, "mixture");
    const std::vector<TokenRecord> records = read_records(path);
    ASSERT_EQ(records.size(), expected.size());
    size_t predictions = 0;
    for (size_t i = 0; i < records.size(); ++i) {
      ASSERT_EQ(records[i].has_prediction, expected[i].has_prediction);
      predictions += records[i].has_prediction ? 1 : 0;
      EXPECT_EQ(records[i].prediction.federation.specialists.size(),
                records[i].has_prediction ? 3u : 0u);
      expect_same(expected[i].prediction.federation, records[i].prediction.federation);
    }
    EXPECT_GT(predictions, 10u);
    EXPECT_NE(verify_vtr(path).seal, VtrReport::Seal::kBroken);
  }
}

TEST_F(VtrTest, LevelCountersHasNoShares) {
  const AuditLayout layout = federated_layout();
  VtrOptions options;
  options.detail = LogDetail::kCounters;
  VtrLog log(at("run.vtr"), some_header(), options, piece);
  log.sink().open(layout, audit_record_bytes(layout, 7, 7));
  log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
  send_federated(log.sink(), layout);
  log.finish("length");
  EXPECT_TRUE(VtrReader(at("run.vtr")).header().federation.specialists.empty());
}

TEST_F(VtrTest, ALayoutWhoseSharesLieOutsideARowIsRefused) {
  AuditLayout layout = federated_layout();
  layout.federation.values += 1;
  EXPECT_THROW(audit_record_bytes(layout, 1, 1), Error);
  layout.federation.values = -1;
  EXPECT_THROW(audit_record_bytes(layout, 1, 1), Error);
}

TEST_F(VtrTest, AHeadOfAFederationIsReadOrRefused) {
  VtrHeader header;
  header.log = some_header();
  header.layers = {{.layer = 0, .top_k = 2, .num_experts = 8}};
  audit::Bytes plain;
  audit::encode_header(header, audit::RowCodec(header).groups(), plain);
  header.federation = {{"a", "b"}, "gate", ShareKind::kTerm, -1};
  audit::Bytes head;
  audit::encode_header(header, audit::RowCodec(header).groups(), head);
  VtrHeader again;
  std::vector<audit::GroupSpec> groups;
  audit::parse_header(head, again, groups);
  EXPECT_EQ(again.federation, header.federation);
  EXPECT_EQ(groups.back().id, audit::GroupId::kFederation);
  audit::parse_header(plain, again, groups);
  EXPECT_TRUE(again.federation.specialists.empty());
  // Cut anywhere in the part behind what every head has, or with numbers that say too much.
  for (size_t cut = 1; cut < 9; ++cut) {
    const audit::ByteSpan shorter = audit::ByteSpan(head).first(head.size() - cut);
    EXPECT_THROW(audit::parse_header(shorter, again, groups), Error) << cut;
  }
  audit::Bytes bad = head;
  bad.back() = 2;  // a kind of share that is none
  EXPECT_THROW(audit::parse_header(bad, again, groups), Error);
  bad = plain;
  bad.push_back(0);  // no specialists
  EXPECT_THROW(audit::parse_header(bad, again, groups), Error);
}

}  // namespace
}  // namespace vitrine
