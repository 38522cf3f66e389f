// SPDX-License-Identifier: Apache-2.0
// Guesses in sealed logs, and logs of runs without any.
#include "src/audit/draft_list.h"
#include "src/audit/page_writer.h"
#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine::audit_test {
namespace {

/// Chains and trees of many sizes, with none, some or all of the guesses right.
DraftedPass some_drafts(int i) {
  DraftedPass drafts;
  drafts.sequence = 1;
  drafts.position = 100 + 3 * i;
  drafts.drafter = i % 3 == 0 ? "suffix" : "a host's own \xF0\x9F";
  const int count = 1 + i % 9;
  for (int guess = 0; guess < count; ++guess) drafts.tokens.push_back(guess * 1000 + i);
  if (i % 2 == 0) {  // two paths beside each other
    for (int guess = 0; guess < count; ++guess)
      drafts.parents.push_back(guess - 2 - (guess == 0 ? -1 : 0));
    for (int guess = 0; guess < count / 2; guess += 2) drafts.accepted.push_back(guess);
  } else {
    for (int guess = 0; guess < count / 2; ++guess) drafts.accepted.push_back(guess);
  }
  drafts.discarded = count - static_cast<int32_t>(drafts.accepted.size());
  return drafts;
}

std::vector<DraftedPass> read_drafts(const std::string& path,
                                     const std::optional<SealKey>& key = {}) {
  VtrReader reader(path, key);
  std::vector<DraftedPass> all;
  for (VtrPage page; reader.next(page);) {
    EXPECT_LE(page.drafts.size(), audit::kMaxPageDrafts);
    all.insert(all.end(), page.drafts.begin(), page.drafts.end());
  }
  return all;
}

class VtrDrafts : public VtrTest {
 protected:
  LogHeader header_with_drafter() {
    LogHeader header = some_header();
    header.speculation = {{"drafter", "suffix"}, {"draft_max", "8"}};
    return header;
  }
  void write(const std::string& name, const LogHeader& header, VtrOptions options = {},
             int num_passes = 0) {
    Rng rng(7);
    const AuditLayout layout = four_layers(AuditLevel::kStandard);
    VtrLog log(at(name), header, overwriting(std::move(options)), piece);
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    send_run(log.sink(), layout, 500, rng);
    for (int i = 0; i < num_passes; ++i) log.sink().on_drafts(some_drafts(i));
    log.sink().on_event({AuditEvent::Kind::kReleased, 1, 0, 500, 0});
    log.finish("complete");
  }
  void expect_complete(const std::string& name) {
    const VtrReport report = verify_vtr(at(name));
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  }
};

TEST_F(VtrDrafts, ComeBackHoweverMany) {
  for (const int count : {1, 1023, 1024, 1025, 2500}) {
    write("run.vtr", header_with_drafter(), {}, count);
    expect_complete("run.vtr");
    EXPECT_EQ(VtrReader(at("run.vtr")).header().log.speculation, header_with_drafter().speculation);
    const std::vector<DraftedPass> found = read_drafts(at("run.vtr"));
    ASSERT_EQ(found.size(), static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) EXPECT_EQ(found[static_cast<size_t>(i)], some_drafts(i));
  }
}

TEST_F(VtrDrafts, ChangeNoRecordAndNoDigest) {
  write("plain.vtr", some_header());
  write("guessed.vtr", header_with_drafter(), {}, 40);
  const auto digests = [&](const std::string& name) {
    std::vector<uint64_t> all;
    for (const VtrPage& page : read_pages(at(name))) {
      all.insert(all.end(), page.digests.begin(), page.digests.end());
    }
    return all;
  };
  EXPECT_EQ(digests("plain.vtr").size(), 500u);
  EXPECT_EQ(digests("plain.vtr"), digests("guessed.vtr"));
}

TEST_F(VtrDrafts, AreAColumnOfTheirOwn) {
  const SealKey reader = SealKey::generate();
  VtrOptions options;
  options.recipients = {{.key = reader.public_key()}};
  write("closed.vtr", header_with_drafter(), options, 5);
  EXPECT_TRUE(read_drafts(at("closed.vtr")).empty());
  EXPECT_EQ(read_drafts(at("closed.vtr"), reader).size(), 5u);
  write("run.vtr", header_with_drafter(), {}, 5);
  // Guesses that were right are the text's tokens.
  for (const char* column : {"drafts", "tokens"}) {
    redact_vtr(at("run.vtr"), at("less.vtr"), {.groups = {column}}, {}, true);
    expect_complete("less.vtr");
    EXPECT_TRUE(read_drafts(at("less.vtr")).empty());
  }
  redact_vtr(at("run.vtr"), at("less.vtr"), {.groups = {"routing"}}, {}, true);
  EXPECT_EQ(read_drafts(at("less.vtr")).size(), 5u);
  // Without a drafter in its head a log has no place for them; at level counters neither.
  write("none.vtr", some_header(), {}, 5);
  expect_complete("none.vtr");
  EXPECT_TRUE(read_drafts(at("none.vtr")).empty());
  VtrOptions counters;
  counters.detail = LogDetail::kCounters;
  write("counters.vtr", header_with_drafter(), counters, 5);
  expect_complete("counters.vtr");
  EXPECT_TRUE(read_drafts(at("counters.vtr")).empty());
}

TEST_F(VtrDrafts, ALeftOutPositionTakesThePagesGuessesAlong) {
  write("run.vtr", header_with_drafter(), {}, 5);  // positions 100 to 116
  const auto left_after = [&](int64_t first, int64_t last) {
    VtrRedaction redaction{.groups = {"tokens"}};
    redaction.rows = [=](uint64_t, int64_t position) {
      return position >= first && position <= last;
    };
    redact_vtr(at("run.vtr"), at("less.vtr"), redaction, {}, true);
    expect_complete("less.vtr");
    VtrOptions options;
    options.redact = {redaction};
    write("never.vtr", header_with_drafter(), options, 5);
    expect_complete("never.vtr");
    const size_t left = read_drafts(at("less.vtr")).size();
    EXPECT_EQ(read_drafts(at("never.vtr")).size(), left);
    return left;
  };
  EXPECT_EQ(left_after(0, 99), 5u);
  EXPECT_EQ(left_after(117, 499), 5u);
  EXPECT_EQ(left_after(116, 116), 0u);
  EXPECT_EQ(left_after(0, 100), 0u);
}

TEST_F(VtrDrafts, PagesThatFailKeepTheirGuesses) {
  VtrHeader header;
  header.log = header_with_drafter();
  header.layers = four_layers(AuditLevel::kStandard).layers;
  const SealKey key = SealKey::generate();
  audit::PageWriterOptions options;
  options.can_fail = true;
  audit::PageWriter pages(header, key, options);
  audit::Bytes bytes;
  pages.begin(bytes);
  for (int i = 0; i < 5000; ++i) {
    pages.add_drafts(some_drafts(i));
    if (i % 1000 != 0) continue;
    pages.encode_page(bytes);
    pages.page_failed();
  }
  EXPECT_TRUE(pages.has_many_drafts());
  int written = 0;
  for (; !pages.is_empty(); ++written) {
    pages.encode_page(bytes);
    pages.page_written();
  }
  EXPECT_EQ(written, 4);  // 4,096 had room to wait
}

TEST_F(VtrDrafts, WhatContradictsItselfIsLeftOut) {
  std::vector<DraftedPass> wrong(11, some_drafts(7));  // a chain of eight, four of them right
  ASSERT_TRUE(audit::is_plain_draft(wrong[0]));
  wrong[0].tokens.clear();
  wrong[1].tokens.assign(256, 1);
  wrong[2].tokens[3] = -1;
  wrong[3].position = -1;
  wrong[4].parents = {-1};
  wrong[5].parents = {-1, 0, 1, 2, 3, 4, 5, 7};
  wrong[6].parents = {-1, 0, 1, -2, 3, 4, 5, 6};
  wrong[7].accepted = {0, 1, 3};
  wrong[8].accepted = {0, 0};
  wrong[9].discarded = 3;
  wrong[10].discarded = 9;
  for (size_t i = 0; i < wrong.size(); ++i) EXPECT_FALSE(audit::is_plain_draft(wrong[i])) << i;
  const AuditLayout layout = four_layers(AuditLevel::kStandard);
  VtrLog log(at("run.vtr"), header_with_drafter(), overwriting(), piece);
  log.sink().open(layout, audit_record_bytes(layout, 7, 7));
  for (const DraftedPass& drafts : wrong) log.sink().on_drafts(drafts);
  log.sink().on_drafts(some_drafts(7));
  log.finish("complete");
  expect_complete("run.vtr");
  EXPECT_EQ(read_drafts(at("run.vtr")), std::vector<DraftedPass>{some_drafts(7)});
}

TEST_F(VtrDrafts, DamagedOnesAreRefused) {
  std::vector<DraftedPass> passes;
  for (int i = 0; i < 9; ++i) passes.push_back(some_drafts(i));
  audit::Bytes bytes;
  audit::encode_drafts(passes, bytes);
  EXPECT_EQ(audit::parse_drafts(bytes), passes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(audit::parse_drafts(audit::ByteSpan(bytes).first(size)), Error);
  }
  bytes.push_back(0);
  EXPECT_THROW(audit::parse_drafts(bytes), Error);
  EXPECT_THROW(audit::parse_drafts(audit::Bytes{0x81, 0x08}), Error);  // 1,025 of them
  // One pass: sequence 1, position 2, no name, one guess 5; then a tree or not, what was right, and
  // what was taken back.
  const auto pass = [](std::vector<uint8_t> end) {
    audit::Bytes all{1, 1, 2, 0, 1, 5};
    all.insert(all.end(), end.begin(), end.end());
    return audit::parse_drafts(all);
  };
  EXPECT_EQ(pass({0, 0, 1}).size(), 1u);
  EXPECT_EQ(pass({1, 0, 1, 0, 0})[0].accepted, std::vector<int32_t>{0});
  EXPECT_THROW(pass({2, 0, 1}), Error);     // neither chain nor tree
  EXPECT_THROW(pass({1, 1, 0, 1}), Error);  // behind itself
  EXPECT_THROW(pass({0, 1, 1, 0}), Error);  // the second one was right
  EXPECT_THROW(pass({0, 0, 0}), Error);     // wrong and not taken back
  EXPECT_THROW(pass({0, 0, 2}), Error);     // more than there were
  audit::Bytes long_name;
  DraftedPass named = some_drafts(1);
  named.drafter = std::string(500, 'n');
  audit::encode_drafts({&named, 1}, long_name);
  EXPECT_EQ(audit::parse_drafts(long_name)[0].drafter, std::string(64, 'n'));
}

TEST_F(VtrDrafts, ALogWithoutOneHasNoColumnForThem) {
  write("run.vtr", some_header());
  audit::FrameReader frames(at("run.vtr"));
  EXPECT_TRUE(frames.header().log.speculation.empty());
  for (const audit::GroupSpec& group : frames.groups()) {
    EXPECT_NE(group.id, audit::GroupId::kDrafts);
  }
  write("guessed.vtr", header_with_drafter());
  audit::FrameReader others(at("guessed.vtr"));
  std::vector<audit::GroupSpec> groups = others.groups();
  ASSERT_EQ(groups.back().id, audit::GroupId::kDrafts);
  EXPECT_NO_THROW(audit::PageOpener(others.header(), groups, {}));
  groups.pop_back();
  EXPECT_THROW(audit::PageOpener(others.header(), groups, {}), Error);
}

}  // namespace
}  // namespace vitrine::audit_test
