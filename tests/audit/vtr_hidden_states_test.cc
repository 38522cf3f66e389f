// SPDX-License-Identifier: Apache-2.0
// Hidden states in a `.vtr`: which records keep them, what can be left out, what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
namespace fs = std::filesystem;

AuditLayout hidden_layout(int32_t size = 24, const std::vector<int32_t>& layers = {0, 2, 4}) {
  return with_hidden_states(four_layers(AuditLevel::kFull), layers, size);
}

VtrOptions full_options() {
  VtrOptions options;
  options.detail = LogDetail::kFull;
  return options;
}

TEST_F(VtrTest, HiddenStatesComeBackBitForBit) {
  const std::vector<TokenRecord> expected =
      write_log(at("run.vtr"), hidden_layout(), 300, full_options());
  const std::vector<TokenRecord> records = read_records(at("run.vtr"));
  ASSERT_EQ(records.size(), expected.size());
  for (size_t i = 0; i < records.size(); ++i) {
    ASSERT_EQ(records[i].hidden_states.size(), 3u);
    expect_record(records[i], expected[i], LogDetail::kFull);
  }
  const VtrReader reader(at("run.vtr"));
  EXPECT_EQ(reader.header().hidden_state_layers, (std::vector<int32_t>{0, 2, 4}));
  EXPECT_EQ(reader.header().hidden_size, 24);
  const VtrReport report = verify_vtr(at("run.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
}

// Rows of other positions are not there: no zeros, and no bytes but a length.
TEST_F(VtrTest, HiddenStatesOnlyWhereTheyAreAskedFor) {
  VtrOptions options = full_options();
  options.hidden_states_at = [](const TokenRecord& record) { return record.position % 50 == 3; };
  const auto expected = write_log(at("some.vtr"), hidden_layout(), 300, options);
  write_log(at("all.vtr"), hidden_layout(), 300, full_options());
  options.hidden_states_at = [](const TokenRecord&) { return false; };
  write_log(at("none.vtr"), hidden_layout(), 300, options);
  write_log(at("without.vtr"), four_layers(AuditLevel::kFull), 300, full_options());
  const auto records = read_records(at("some.vtr"));
  ASSERT_EQ(records.size(), 300u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].hidden_states.empty(), i % 50 != 3) << i;
    if (i % 50 == 3) expect_record(records[i], expected[i], LogDetail::kFull);
  }
  const auto pages = read_pages(at("some.vtr"));
  EXPECT_FALSE(pages[0].is_redacted[0]);
  EXPECT_EQ(verify_vtr(at("some.vtr")).seal, VtrReport::Seal::kComplete);
  EXPECT_GT(fs::file_size(at("all.vtr")), fs::file_size(at("none.vtr")) + 300 * 200);
  EXPECT_LT(fs::file_size(at("none.vtr")), fs::file_size(at("without.vtr")) + 3000);
}

TEST_F(VtrTest, LowerLevelsKeepNoHiddenStates) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kCounters}) {
    VtrOptions options;
    options.detail = detail;
    write_log(at("run.vtr"), hidden_layout(), 20, options);
    EXPECT_TRUE(VtrReader(at("run.vtr")).header().hidden_state_layers.empty());
    EXPECT_EQ(verify_vtr(at("run.vtr")).seal, VtrReport::Seal::kComplete);
  }
}

// A page is closed before its hidden states outgrow it; a NaN has one encoding.
TEST_F(VtrTest, WideHiddenStatesFillPages) {
  const AuditLayout layout = hidden_layout(20000, {1});
  Rng rng(3);
  VtrLog log(at("run.vtr"), some_header(), overwriting(full_options()));
  log.sink().open(layout, audit_record_bytes(layout, 7, 7));
  for (int32_t position = 0; position < 120; ++position) {
    BuiltPass built = build_step(layout, 0, 1, position, 1, rng);
    const size_t words =
        built.bytes.size() - built.bytes.size() % 8 - 4 * static_cast<size_t>(layout.token_words);
    put(built.bytes, words + 4 * static_cast<size_t>(layout.token_words) - 8, uint32_t{0x7FC12345});
    send(log.sink(), built.bytes);
  }
  log.finish("length");
  const auto pages = read_pages(at("run.vtr"));
  EXPECT_GE(pages.size(), 3u);
  size_t records = 0;
  for (const VtrPage& page : pages) {
    EXPECT_LE(page.bytes, audit::kMaxPageBytes + (size_t{1} << 20));
    for (const TokenRecord& record : page.records) {
      ASSERT_EQ(record.hidden_states.size(), 1u);
      ASSERT_EQ(record.hidden_states[0].values.size(), 20000u);
      ++records;
    }
  }
  EXPECT_EQ(records, 120u);
  const VtrReport report = verify_vtr(at("run.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
}

TEST_F(VtrTest, HiddenStatesBeyondAMebibyteAreRefused) {
  const AuditLayout layout = hidden_layout(131073, {0, 1});
  VtrLog log(at("run.vtr"), some_header(), overwriting(full_options()));
  try {
    log.sink().open(layout, audit_record_bytes(layout, 1, 1));
    ADD_FAILURE() << "was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("1048584 bytes a token, expected at most 1048576"),
              std::string::npos)
        << error.what();
  }
}

TEST_F(VtrTest, HiddenStatesCanBeLeftOut) {
  write_log(at("run.vtr"), hidden_layout(), 100, full_options());
  redact_vtr(at("run.vtr"), at("none.vtr"), {.groups = {"hidden_states"}});
  redact_vtr(at("run.vtr"), at("some.vtr"),
             {.groups = {"hidden_states"},
              .rows = [](uint64_t, int64_t position) { return position < 40; }});
  for (const char* name : {"none.vtr", "some.vtr"}) {
    const VtrReport report = verify_vtr(at(name));
    EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
    EXPECT_EQ(report.redacted_groups, 1u);
    for (const TokenRecord& record : read_records(at(name))) {
      const bool is_left_out = name[0] == 'n' || record.position < 40;
      EXPECT_EQ(record.hidden_states.empty(), is_left_out);
      EXPECT_GE(record.token, 0);
    }
  }
}

TEST_F(VtrTest, AHeadWithImpossibleHiddenStatesIsRefused) {
  const auto refused = [](auto change) {
    VtrHeader header;
    header.log = some_header();
    header.detail = LogDetail::kFull;
    header.layers = {{.layer = 0, .top_k = 2, .num_experts = 8}, {.layer = 1}};
    header.hidden_state_layers = {0, 2};
    header.hidden_size = 16;
    change(header);
    audit::Bytes head;
    audit::encode_header(header, audit::RowCodec(header).groups(), head);
    VtrHeader again;
    std::vector<audit::GroupSpec> groups;
    try {
      audit::parse_header(head, again, groups);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
      return true;
    }
    EXPECT_EQ(again.hidden_state_layers, header.hidden_state_layers);
    return false;
  };
  EXPECT_FALSE(refused([](VtrHeader&) {}));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_state_layers = {2, 0}; }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_state_layers = {1, 1}; }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_state_layers = {0, 3}; }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_state_layers = {0, 1, 2, 2}; }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_state_layers.clear(); }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_size = 0; }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_size = (1 << 17) + 1; }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.hidden_size = std::numeric_limits<int32_t>::max(); }));
  EXPECT_TRUE(refused([](VtrHeader& h) { h.detail = LogDetail::kStandard; }));
}

/// Row 2 of the column with another length, committed to and signed as if it were right.
TEST_F(VtrTest, ARowOfAnotherLengthIsRefused) {
  for (const size_t length : {size_t{1}, size_t{287}, size_t{289}, size_t{576}}) {
    VtrOptions options = full_options();
    options.seal = SealKey::generate();
    write_log(at("run.vtr"), hidden_layout(), 10, options);
    audit::FrameReader reader(at("run.vtr"));
    const audit::PageOpener opener(reader.header(), reader.groups());
    audit::Bytes log(audit::kMagic.begin(), audit::kMagic.end());
    audit::Digest chain{};
    audit::append_frame(log, audit::FrameTag::kHead, reader.head_frame().head, {}, *options.seal,
                        chain);
    audit::Frame frame;
    while (reader.next(frame)) {
      audit::Bytes head(frame.head.begin(), frame.head.end()), payload;
      if (frame.tag == audit::FrameTag::kPage) {
        audit::OpenPage page;
        opener.open(frame, true, page);
        audit::ColumnSealer sealer;
        for (size_t i = 0; i < page.groups.size(); ++i) {
          audit::GroupRows& rows = page.groups[i].rows;
          if (reader.groups()[i].id == audit::GroupId::kHiddenStates) {
            ASSERT_EQ(rows.lengths.at(2), 288u);
            rows.bytes.resize(rows.bytes.size() - 288 + length);
            rows.lengths[2] = static_cast<uint32_t>(length);
          }
          page.head.groups[i] = sealer.seal(reader.groups()[i], rows, page.head.rows,
                                            page.groups[i].key, {}, payload);
        }
        head.clear();
        audit::encode_page_head(page.head, head);
      }
      audit::append_frame(log, frame.tag, head, payload, *options.seal, chain);
    }
    write(at("changed.vtr"), std::string(log.begin(), log.end()));
    const VtrReport report = verify_vtr(at("changed.vtr"));
    EXPECT_EQ(report.seal, VtrReport::Seal::kBroken);
    EXPECT_NE(report.problem.find("hidden states of " + std::to_string(length) + " bytes"),
              std::string::npos)
        << report.problem;
    EXPECT_THROW(read_pages(at("changed.vtr")), Error);
  }
}

}  // namespace
}  // namespace vitrine
