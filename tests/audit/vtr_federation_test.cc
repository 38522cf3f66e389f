// SPDX-License-Identifier: Apache-2.0
// A federation's shares in a `.vtr` and in JSON: kept bit for bit at every level, and what a head
// may not say.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "src/audit/page_writer.h"
#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;

AuditLayout federated_layout(AuditLevel level = AuditLevel::kStandard) {
  return with_specialists(four_layers(level));
}
AuditLayout attributed_layout(AuditLevel level = AuditLevel::kStandard) {
  return with_specialists(with_terms(four_layers(level)));
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
    const size_t rows_at = sizeof(AuditPassHeader) + 24 * size_t{3} + 4 * size_t{header.num_rows};
    for (size_t row = 0; row < header.num_rows; ++row) {
      for (int32_t i = 0; i < layout.federation.num_words() / 2; ++i) {
        const size_t word = row * static_cast<size_t>(layout.row_words) +
                            static_cast<size_t>(layout.federation.values + 2 * i);
        put(built.bytes, rows_at + 4 * word, -0.1 * (i + 1) - position / 7.0);
      }
      // Logits and terms: numbers that have a sum at either level.
      const size_t count = layout.federation.num_terms.size();
      for (size_t i = 0; i < 2 * (layout.terms.size() + count) && count > 0; ++i) {
        const size_t word = row * static_cast<size_t>(layout.row_words) +
                            static_cast<size_t>(layout.attribution) + i;
        put(built.bytes, rows_at + 4 * word,
            0.37F * static_cast<float>(i + row) - static_cast<float>(position) / 3.0F);
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
    VtrLog log(path, some_header(), overwriting(options), piece);
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

// Behind the shares stand, for each specialist, both logits, its terms, and the runner-up's.
TEST_F(VtrTest, EachSpecialistsTermsAreWhereTheLayoutSays) {
  const AuditLayout layout = attributed_layout();
  SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kWait);
  ring.open(layout, audit_record_bytes(layout, 7, 7));
  size_t predictions = 0;
  for (const TokenRecord& record : send_federated(ring, layout)) {
    const auto& attributions = record.prediction.federation.attributions;
    ASSERT_EQ(attributions.size(), record.has_prediction ? 3u : 0u);
    EXPECT_TRUE(record.prediction.attribution.terms.empty());
    if (!record.has_prediction) continue;
    ++predictions;
    const float first = attributions[0].logit;
    float word = 0;
    size_t term = 0;
    const auto expect_next = [&](float value) {
      EXPECT_NEAR(value, first + 0.37F * word, 1e-4);
      word += 1;
    };
    for (size_t s = 0; s < 3; ++s) {
      const AttributionRecord& of = attributions[s];
      ASSERT_EQ(of.terms.size(), static_cast<size_t>(layout.federation.num_terms[s]));
      expect_next(of.logit);
      expect_next(of.runner_up_logit);
      for (const TermRecord& one : of.terms) expect_next(one.value);
      for (const TermRecord& one : of.terms) expect_next(one.runner_up);
      double sum = double{of.rounding};
      for (const TermRecord& one : of.terms) {
        EXPECT_EQ(one.kind, layout.terms[term].kind);
        EXPECT_EQ(one.layer, layout.terms[term++].layer);
        sum += double{one.value};
      }
      EXPECT_NEAR(sum, double{of.logit}, 1e-3);
      const int32_t best = record.prediction.alternatives[0].token;
      EXPECT_EQ(of.runner_up == best, best != record.prediction.token);
    }
  }
  EXPECT_GT(predictions, 10u);
  AuditLayout bad = layout;
  bad.federation.num_terms[0] += 1;
  EXPECT_THROW(audit_record_bytes(bad, 1, 1), Error);
  bad.federation.num_terms.pop_back();
  EXPECT_THROW(audit_record_bytes(bad, 1, 1), Error);
  bad = layout;
  bad.attribution += 1;
  EXPECT_THROW(audit_record_bytes(bad, 1, 1), Error);
}

void expect_same(const AttributionRecord& want, const AttributionRecord& got) {
  EXPECT_EQ(got.runner_up, want.runner_up);
  EXPECT_EQ(got.logit, want.logit);
  EXPECT_EQ(got.rounding, want.rounding);
  EXPECT_EQ(got.runner_up_logit, want.runner_up_logit);
  EXPECT_EQ(got.runner_up_rounding, want.runner_up_rounding);
  ASSERT_EQ(got.terms.size(), want.terms.size());
  for (size_t i = 0; i < want.terms.size(); ++i) {
    EXPECT_EQ(got.terms[i].expert, want.terms[i].expert);
    EXPECT_EQ(got.terms[i].value, want.terms[i].value);
    EXPECT_EQ(got.terms[i].runner_up, want.terms[i].runner_up);
  }
}

TEST_F(VtrTest, EachSpecialistsTermsComeBackAndAreVerified) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    const AuditLayout layout =
        attributed_layout(detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard);
    const std::string path = at(std::string(log_detail_name(detail)) + ".vtr");
    VtrOptions options;
    options.detail = detail;
    VtrLog log(path, some_header(), overwriting(options), piece);
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    const std::vector<TokenRecord> expected = send_federated(log.sink(), layout);
    log.finish("length");
    VtrReader reader(path);
    const VtrHeader header = reader.header();
    EXPECT_EQ(header.federation.num_terms, layout.federation.num_terms);
    EXPECT_EQ(header.terms, layout.terms);
    const std::vector<TokenRecord> records = read_records(path);
    ASSERT_EQ(records.size(), expected.size());
    for (size_t i = 0; i < records.size(); ++i) {
      const auto want = round_record(expected[i], detail).prediction.federation.attributions;
      const auto& got = records[i].prediction.federation.attributions;
      ASSERT_EQ(got.size(), want.size());
      for (size_t s = 0; s < got.size(); ++s) expect_same(want[s], got[s]);
    }
    EXPECT_EQ(verify_vtr(path).problem, "");
    // Either column can be left out without the other.
    for (const char* column : {"federation", "attribution", "routing"}) {
      const std::string less = at("less.vtr");
      std::filesystem::remove(less);
      redact_vtr(path, less, {.groups = {column}});
      EXPECT_EQ(verify_vtr(less).problem, "");
      for (const TokenRecord& record : read_records(less)) {
        const FederationRecord& of = record.prediction.federation;
        EXPECT_EQ(of.specialists.empty(), !record.has_prediction || column[0] == 'f');
        EXPECT_EQ(of.attributions.empty(), !record.has_prediction || column[0] == 'a');
      }
      std::string json;
      VtrReader without(less);
      export_json(without, [&json](std::string_view part) { json += part; });
      EXPECT_TRUE(nlohmann::json::accept(json)) << column;
    }
    // A log that is sealed well and adds up wrongly: by more than its level rounds.
    const auto last =
        std::ranges::find_if(expected.rbegin(), expected.rend(), &TokenRecord::has_prediction);
    for (const float off : {0.0F, detail == LogDetail::kFull ? 1e-4F : 4.0F}) {
      const SealKey key = SealKey::generate();
      VtrHeader own = header;
      own.public_key = key.public_key();
      audit::PageWriter pages(own, key, {});
      audit::Bytes bytes, page;
      pages.begin(bytes);
      pages.add_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
      for (TokenRecord record : expected) {
        if (record.position == last->position) {
          record.prediction.federation.attributions[2].runner_up_rounding += off;
        }
        pages.add_record(record);
      }
      pages.encode_page(page);
      pages.page_written();
      bytes.insert(bytes.end(), page.begin(), page.end());
      const std::string changed = at("changed.vtr");
      write(changed, {bytes.begin(), bytes.end()});
      const VtrReport report = verify_vtr(changed);
      if (off == 0) {
        EXPECT_EQ(report.seal, VtrReport::Seal::kOpen) << report.problem;
      } else {
        EXPECT_EQ(report.seal, VtrReport::Seal::kBroken);
        const std::string place = "position " + std::to_string(last->position);
        EXPECT_NE(report.problem.find(place), std::string::npos) << report.problem;
      }
    }
  }
}

TEST_F(VtrTest, LevelCountersHasNoShares) {
  const AuditLayout layout = federated_layout();
  VtrOptions options;
  options.detail = LogDetail::kCounters;
  VtrLog log(at("run.vtr"), some_header(), overwriting(options), piece);
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
  EXPECT_EQ(groups.at(groups.size() - 2).id, audit::GroupId::kFederation);
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
  EXPECT_EQ(head[0], audit::kFormatVersion);
  // With terms of each specialist, and a constraint beside them.
  using Kind = AuditLayout::Term::Kind;
  header.terms = {
      {Kind::kEmbedding, -1, -1}, {Kind::kAttention, 0, -1}, {Kind::kEmbedding, -1, -1}};
  header.federation.num_terms = {2, 1};
  for (const bool has_constraint : {false, true}) {
    if (has_constraint) header.log.constraint = {{"kind", "regex"}};
    head.clear();
    audit::encode_header(header, audit::RowCodec(header).groups(), head);
    EXPECT_EQ(head[0], audit::kFormatVersion);
    audit::parse_header(head, again, groups);
    EXPECT_EQ(again.federation, header.federation);
    EXPECT_EQ(again.terms, header.terms);
    EXPECT_EQ(again.log.constraint, header.log.constraint);
    for (size_t cut = 1; cut < 24; ++cut) {
      const audit::ByteSpan shorter = audit::ByteSpan(head).first(head.size() - cut);
      EXPECT_THROW(audit::parse_header(shorter, again, groups), Error) << cut;
    }
    bad = head;
    bad[0] = audit::kFormatVersion + 1;
    EXPECT_THROW(audit::parse_header(bad, again, groups), Error);
  }
  // Terms that are nobody's, or of other specialists than there are.
  for (const std::vector<int32_t>& counts :
       {std::vector<int32_t>{}, {3}, {1, 1}, {3, 0}, {1, 1, 1}, {2, 2}}) {
    header.federation.num_terms = counts;
    head.clear();
    audit::encode_header(header, audit::RowCodec(header).groups(), head);
    EXPECT_THROW(audit::parse_header(head, again, groups), Error) << counts.size();
  }
}

}  // namespace
}  // namespace vitrine
