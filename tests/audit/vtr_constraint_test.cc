// Decisions of constraints in sealed logs, and logs of runs without any.
#include "vtr_fixture.h"

namespace vitrine::audit_test {
namespace {

class VtrConstraint : public VtrTest {
 protected:
  LogHeader header_with_constraint() {
    LogHeader header = some_header();
    header.constraint = {{"kind", "json-schema"}, {"sha256", std::string(64, 'a')}};
    return header;
  }
  std::vector<TokenRecord> write(const std::string& name, const LogHeader& header,
                                 VtrOptions options = {}) {
    Rng rng(7);
    const bool is_full = options.detail == LogDetail::kFull;
    const AuditLayout layout =
        with_constraint(four_layers(is_full ? AuditLevel::kFull : AuditLevel::kStandard));
    VtrLog log(at(name), header, std::move(options), piece);
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    std::vector<TokenRecord> expected = send_run(log.sink(), layout, 500, rng);
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
