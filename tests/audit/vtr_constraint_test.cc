// SPDX-License-Identifier: Apache-2.0
// Decisions of constraints in sealed logs, and logs of runs without any.
#include "src/audit/failure_list.h"
#include "src/audit/page_writer.h"
#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine::audit_test {
namespace {

ConstraintFailure some_failure(int i) {
  using Kind = ConstraintFailure::Kind;
  ConstraintFailure failure;
  failure.kind = static_cast<Kind>(i % 5);
  failure.attempt = i;
  failure.sequence = 1;
  failure.position = 100 + i;
  failure.token = failure.kind == Kind::kRefused ? i : -1;
  failure.allowed = 3 * i;
  failure.in_time = 2 * i;
  if (failure.kind == Kind::kError) failure.message = "too much \xF0\x9F work";
  failure.state.num_bytes = int64_t{7} * i;
  failure.state.num_readings = i;
  for (int j = 0; j < std::min(i, 8); ++j)
    failure.state.readings.push_back("at '/a\"': " + std::to_string(j));
  failure.state.next_bytes = "'a'-'z'";
  failure.state.completion = std::string(static_cast<size_t>(i) % 300, '}');
  return failure;
}

std::vector<ConstraintFailure> read_failures(const std::string& path,
                                             const std::optional<SealKey>& key = {}) {
  VtrReader reader(path, key);
  std::vector<ConstraintFailure> failures;
  for (VtrPage page; reader.next(page);) {
    failures.insert(failures.end(), page.failures.begin(), page.failures.end());
  }
  return failures;
}

class VtrConstraint : public VtrTest {
 protected:
  LogHeader header_with_constraint() {
    LogHeader header = some_header();
    header.constraint = {{"kind", "json-schema"}, {"sha256", std::string(64, 'a')}};
    return header;
  }
  std::vector<TokenRecord> write(const std::string& name, const LogHeader& header,
                                 VtrOptions options = {}, int num_failures = 0) {
    Rng rng(7);
    const bool is_full = options.detail == LogDetail::kFull;
    const AuditLayout layout =
        with_constraint(four_layers(is_full ? AuditLevel::kFull : AuditLevel::kStandard));
    VtrLog log(at(name), header, overwriting(std::move(options)), piece);
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    std::vector<TokenRecord> expected = send_run(log.sink(), layout, 500, rng);
    for (int i = 0; i < num_failures; ++i) log.sink().on_failure(some_failure(i));
    log.sink().on_event({AuditEvent::Kind::kReleased, 1, 0, 500, 0});
    log.finish("complete");
    return expected;
  }
};

TEST_F(VtrConstraint, DecisionsComeBackAtBothLevels) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    VtrOptions options;
    options.detail = detail;
    const auto expected = write("run.vtr", header_with_constraint(), options);
    const VtrReport report = verify_vtr(at("run.vtr"));
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
    EXPECT_EQ(report.header.log.constraint, header_with_constraint().constraint);
    const auto found = read_records(at("run.vtr"));
    ASSERT_EQ(found.size(), expected.size());
    size_t given = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      expect_record(found[i], expected[i], detail);
      const TokenRecord rounded = round_record(expected[i], detail);
      if (!expected[i].has_prediction) continue;
      given += expected[i].prediction.constraint.is_given();
      const ConstraintDecision &got = found[i].prediction.constraint,
                               &want = rounded.prediction.constraint;
      EXPECT_EQ(got.allowed, want.allowed);
      EXPECT_EQ(got.is_limited, want.is_limited);
      EXPECT_EQ(got.first_ruled_out, want.first_ruled_out);
      EXPECT_EQ(got.attempt, want.attempt);
      expect_same(got.removed, want.removed);
      expect_same(got.mask_microseconds, want.mask_microseconds);
    }
    EXPECT_GT(given, 50u);
  }
}

void expect_failure(const ConstraintFailure& got, const ConstraintFailure& want) {
  EXPECT_EQ(got.kind, want.kind);
  EXPECT_EQ(got.attempt, want.attempt);
  EXPECT_EQ(got.sequence, want.sequence);
  EXPECT_EQ(got.position, want.position);
  EXPECT_EQ(got.token, want.token);
  EXPECT_EQ(got.allowed, want.allowed);
  EXPECT_EQ(got.in_time, want.in_time);
  EXPECT_EQ(got.message, want.message);
  EXPECT_EQ(got.state.num_bytes, want.state.num_bytes);
  EXPECT_EQ(got.state.num_readings, want.state.num_readings);
  EXPECT_EQ(got.state.readings, want.state.readings);
  EXPECT_EQ(got.state.next_bytes, want.state.next_bytes);
  EXPECT_EQ(got.state.completion, want.state.completion);
}

TEST_F(VtrConstraint, FailuresComeBackHoweverMany) {
  for (const int count : {1, 255, 256, 257, 700}) {
    write("run.vtr", header_with_constraint(), {}, count);
    const VtrReport report = verify_vtr(at("run.vtr"));
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
    const std::vector<ConstraintFailure> found = read_failures(at("run.vtr"));
    ASSERT_EQ(found.size(), static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) expect_failure(found[static_cast<size_t>(i)], some_failure(i));
  }
}

TEST_F(VtrConstraint, FailuresAreAColumnOfTheirOwn) {
  const SealKey reader = SealKey::generate();
  VtrOptions options;
  options.recipients = {{.key = reader.public_key()}};
  write("closed.vtr", header_with_constraint(), options, 5);
  EXPECT_TRUE(read_failures(at("closed.vtr")).empty());
  EXPECT_EQ(read_failures(at("closed.vtr"), reader).size(), 5u);
  write("run.vtr", header_with_constraint(), {}, 5);
  redact_vtr(at("run.vtr"), at("less.vtr"), {.groups = {"failures"}});
  const VtrReport report = verify_vtr(at("less.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  EXPECT_GT(report.redacted_groups, 0u);
  EXPECT_TRUE(read_failures(at("less.vtr")).empty());
  // Without a constraint in its head a log has no place for them; at level counters neither.
  write("none.vtr", some_header(), {}, 5);
  EXPECT_EQ(verify_vtr(at("none.vtr")).seal, VtrReport::Seal::kComplete);
  EXPECT_TRUE(read_failures(at("none.vtr")).empty());
  VtrOptions counters;
  counters.detail = LogDetail::kCounters;
  write("counters.vtr", header_with_constraint(), counters, 5);
  EXPECT_EQ(verify_vtr(at("counters.vtr")).seal, VtrReport::Seal::kComplete);
}

TEST_F(VtrConstraint, ALeftOutPositionTakesThePagesFailuresAlong) {
  write("run.vtr", header_with_constraint(), {}, 5);  // positions 100 to 104
  const auto left_after = [&](int64_t first, int64_t last) {
    VtrRedaction redaction{.groups = {"prediction", "failures"}};
    redaction.rows = [=](uint64_t, int64_t position) {
      return position >= first && position <= last;
    };
    redact_vtr(at("run.vtr"), at("less.vtr"), redaction, {}, true);
    EXPECT_EQ(verify_vtr(at("less.vtr")).seal, VtrReport::Seal::kComplete);
    VtrOptions options;
    options.redact = {redaction};
    write("never.vtr", header_with_constraint(), options, 5);
    EXPECT_EQ(verify_vtr(at("never.vtr")).seal, VtrReport::Seal::kComplete);
    const size_t left = read_failures(at("less.vtr")).size();
    EXPECT_EQ(read_failures(at("never.vtr")).size(), left);
    return left;
  };
  EXPECT_EQ(left_after(0, 99), 5u);
  EXPECT_EQ(left_after(104, 104), 0u);
}

TEST_F(VtrConstraint, PagesThatFailKeepTheirFailures) {
  VtrHeader header;
  header.log = header_with_constraint();
  header.layers = four_layers(AuditLevel::kStandard).layers;
  const SealKey key = SealKey::generate();
  audit::PageWriterOptions options;
  options.can_fail = true;
  audit::PageWriter pages(header, key, options);
  audit::Bytes bytes;
  pages.begin(bytes);
  for (int i = 0; i < 700; ++i) {
    pages.add_failure(some_failure(i));
    if (i % 100 != 0) continue;
    pages.encode_page(bytes);
    pages.page_failed();
  }
  EXPECT_TRUE(pages.has_many_failures());
  int written = 0;
  for (; !pages.is_empty(); ++written) {
    pages.encode_page(bytes);
    pages.page_written();
  }
  EXPECT_EQ(written, 3);
}

TEST_F(VtrConstraint, LongTextsAreCut) {
  ConstraintFailure failure = some_failure(4);
  failure.message = std::string(5000, 'm');
  failure.state.readings.assign(20, std::string(2000, 'r'));
  audit::Bytes bytes;
  audit::encode_failures({&failure, 1}, bytes);
  const std::vector<ConstraintFailure> found = audit::parse_failures(bytes);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].message, std::string(1024, 'm'));
  EXPECT_EQ(found[0].state.readings, std::vector<std::string>(8, std::string(1024, 'r')));
}

TEST_F(VtrConstraint, DamagedFailuresAreRefused) {
  std::vector<ConstraintFailure> failures;
  failures.reserve(9);
  for (int i = 0; i < 9; ++i) failures.push_back(some_failure(i));
  audit::Bytes bytes;
  audit::encode_failures(failures, bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(audit::parse_failures(audit::ByteSpan(bytes).first(size)), Error);
  }
  bytes.push_back(0);
  EXPECT_THROW(audit::parse_failures(bytes), Error);
  EXPECT_THROW(audit::parse_failures(audit::Bytes{0x81, 0x02}), Error);  // 257 of them
  EXPECT_THROW(audit::parse_failures(audit::Bytes{1, 5}), Error);        // no kind
}

TEST_F(VtrConstraint, ALogFromBeforeThereWereFailuresIsRead) {
  write("run.vtr", header_with_constraint());
  audit::FrameReader frames(at("run.vtr"));
  std::vector<audit::GroupSpec> groups = frames.groups();
  ASSERT_EQ(groups.back().id, audit::GroupId::kLayerMarks);
  ++groups.back().row_bytes;
  EXPECT_THROW(audit::PageOpener(frames.header(), groups, {}), Error) << "another width";
  groups.pop_back();
  EXPECT_NO_THROW(audit::PageOpener(frames.header(), groups, {}));
  ASSERT_EQ(groups.back().id, audit::GroupId::kFailures);
  groups.pop_back();
  EXPECT_NO_THROW(audit::PageOpener(frames.header(), groups, {}));
  groups.pop_back();
  EXPECT_THROW(audit::PageOpener(frames.header(), groups, {}), Error);
}

/// Their rows would be read by widths that nothing gives: beyond the row, or beyond the record.
TEST_F(VtrConstraint, GroupsThatTheHeadDoesNotAskForAreRefused) {
  using audit::GroupId, audit::GroupKind;
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    write_log(at("run.vtr"), four_layers(AuditLevel::kFull), 5, {.detail = detail});
    audit::FrameReader frames(at("run.vtr"));
    const auto with = [&](GroupId id, GroupKind kind, uint32_t row_bytes) {
      std::vector<audit::GroupSpec> groups;
      for (const audit::GroupSpec& spec : frames.groups()) {
        if (spec.id != id) groups.push_back(spec);
      }
      groups.push_back({id, kind, row_bytes});
      audit::PageOpener(frames.header(), groups, {});
    };
    const bool is_full = detail == LogDetail::kFull;
    EXPECT_THROW(with(GroupId::kLayerMarks, GroupKind::kRows, 25), Error);
    EXPECT_THROW(with(GroupId::kLayerMarks, GroupKind::kVariableRows, 0), Error);
    EXPECT_THROW(with(GroupId::kRouterProbs, GroupKind::kRows, 1), Error);
    for (const GroupId id : {GroupId::kConstraint, GroupId::kAttribution, GroupId::kFederation,
                             GroupId::kSelection, GroupId::kExpertNorms}) {
      EXPECT_THROW(with(id, GroupKind::kRows, 1), Error);
    }
    EXPECT_THROW(with(GroupId::kFailures, GroupKind::kWhole, 0), Error);
    EXPECT_THROW(with(GroupId::kDrafts, GroupKind::kWhole, 0), Error);
    EXPECT_THROW(with(GroupId::kCounters, GroupKind::kWhole, 0), Error);
    EXPECT_EQ(is_full, audit::RowCodec(frames.header()).groups().back().id != GroupId::kLayerMarks);
    EXPECT_NO_THROW(with(static_cast<GroupId>(33), GroupKind::kRows, 3)) << "a later version's";
    EXPECT_NO_THROW(with(static_cast<GroupId>(200), GroupKind::kWhole, 0)) << "a host's";
  }
}

TEST_F(VtrConstraint, ALogWithoutOneHasNone) {
  write("run.vtr", some_header());
  const VtrReport report = verify_vtr(at("run.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  EXPECT_TRUE(report.header.log.constraint.empty());
  for (const TokenRecord& record : read_records(at("run.vtr"))) {
    EXPECT_FALSE(record.prediction.constraint.is_given());
  }
}

TEST_F(VtrConstraint, TheColumnCanBeLeftOut) {
  write("run.vtr", header_with_constraint());
  redact_vtr(at("run.vtr"), at("less.vtr"), {.groups = {"constraint"}});
  const VtrReport report = verify_vtr(at("less.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  EXPECT_GT(report.redacted_groups, 0u);
  for (const TokenRecord& record : read_records(at("less.vtr"))) {
    EXPECT_FALSE(record.prediction.constraint.is_given());
  }
}

}  // namespace
}  // namespace vitrine::audit_test
