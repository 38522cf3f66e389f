// SPDX-License-Identifier: Apache-2.0
// What of a log is encrypted, for whom, and what is never written at all.
#include <gtest/gtest.h>

#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
using Seal = VtrReport::Seal;

AuditLayout some_layout() { return layout_of(3, 8, 2); }

/// The kind of what `action` throws, with one line; kInternal where it throws nothing.
template <typename Action>
ErrorKind kind_of(Action action, const std::string& word) {
  try {
    action();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos);
    EXPECT_NE(text.find(word), std::string::npos) << text;
    return error.kind();
  }
  return ErrorKind::kInternal;
}

std::vector<TokenRecord> read_with(const std::string& path, const std::optional<SealKey>& key,
                                   std::vector<std::string>* text = nullptr) {
  VtrReader reader(path, key);
  std::vector<TokenRecord> records;
  VtrPage page;
  while (reader.next(page)) {
    records.insert(records.end(), page.records.begin(), page.records.end());
    if (text != nullptr) text->insert(text->end(), page.text.begin(), page.text.end());
  }
  return records;
}

class VtrPrivacyTest : public VtrTest {
 protected:
  /// For `all` everything, for `auditor` the use of experts.
  std::vector<TokenRecord> write_encrypted(LogDetail detail = LogDetail::kStandard) {
    VtrOptions options;
    options.detail = detail;
    options.text = true;
    options.page_tokens = 23;
    options.seal = seal_;
    options.recipients = {{all_.public_key()}, {auditor_.public_key(), {"counters"}}};
    const auto level = detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard;
    return write_log(at("run.vtr"), layout_of(3, 8, 2, level), 100, options);
  }

  const SealKey seal_ = SealKey::generate(), all_ = SealKey::generate(),
                auditor_ = SealKey::generate(), stranger_ = SealKey::generate();
};

TEST_F(VtrPrivacyTest, ARecipientReadsWhatWasWritten) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    const auto expected = write_encrypted(detail);
    std::vector<std::string> text;
    const auto records = read_with(at("run.vtr"), all_, &text);
    ASSERT_EQ(records.size(), expected.size());
    ASSERT_EQ(text.size(), expected.size());
    for (size_t i = 0; i < records.size(); ++i) {
      expect_record(records[i], expected[i], detail);
      EXPECT_EQ(text[i], piece(expected[i].token));
    }
    const VtrReport report = verify_vtr(at("run.vtr"), seal_.public_key(), all_);
    EXPECT_EQ(report.seal, Seal::kComplete) << report.problem;
    EXPECT_EQ(report.closed_groups, 0u);
    EXPECT_EQ(report.redacted_groups, 0u);
  }
}

TEST_F(VtrPrivacyTest, AnAuditorReadsTheUseOfExpertsOverManyTokens) {
  const auto expected = write_encrypted();
  std::vector<std::string> text;
  const auto records = read_with(at("run.vtr"), auditor_, &text);
  ASSERT_EQ(records.size(), expected.size());
  EXPECT_TRUE(text.empty());
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].position, expected[i].position);
    EXPECT_EQ(records[i].token, -1);
    EXPECT_FALSE(records[i].has_prediction);
    for (size_t l = 0; l < 3; ++l) {
      EXPECT_EQ(records[i].layers[l].routes[0].expert, -1);
      EXPECT_TRUE(std::isnan(records[i].layers[l].residual_norm));
    }
  }
  const VtrReport report = verify_vtr(at("run.vtr"), seal_.public_key(), auditor_);
  EXPECT_EQ(report.seal, Seal::kComplete) << report.problem;
  EXPECT_EQ(report.closed_groups, 8 * 5u)
      << "tokens, text, prediction, routing, norms, digests, layers' marks, sampler in five pages";
}

// Every count is over 64 tokens and more, however small the pages are, and none is left out.
TEST_F(VtrPrivacyTest, CountsAreOverManyTokens) {
  for (const int32_t tokens : {1, 63, 64, 65, 127, 128, 300}) {
    VtrOptions options;
    options.page_tokens = 5;
    options.recipients = {{all_.public_key()}, {auditor_.public_key(), {"counters"}}};
    const auto expected = write_log(at("run.vtr"), layout_of(3, 8, 2), tokens, options);
    EXPECT_EQ(verify_vtr(at("run.vtr"), {}, auditor_).seal, Seal::kComplete);
    std::vector<std::vector<uint64_t>> told(3, std::vector<uint64_t>(8)), uses = told;
    uint64_t counted = 0;
    VtrReader reader(at("run.vtr"), auditor_);
    EXPECT_EQ(reader.header().counter_tokens, 64);
    for (VtrPage page; reader.next(page);) {
      if (page.expert_uses.empty()) continue;
      EXPECT_GE(page.expert_use_tokens, 64u);
      counted += page.expert_use_tokens;
      for (size_t l = 0; l < 3; ++l) {
        for (size_t e = 0; e < 8; ++e) told[l][e] += page.expert_uses[l][e];
      }
    }
    EXPECT_EQ(counted, tokens < 64 ? 0u : static_cast<uint64_t>(tokens));
    for (const TokenRecord& record : expected) {
      for (size_t l = 0; l < 3; ++l) {
        for (const RouteRecord& route : record.layers[l].routes) {
          ++uses[l][static_cast<size_t>(route.expert)];
        }
      }
    }
    if (tokens >= 64) {
      EXPECT_EQ(told, uses) << tokens;
    }
  }
}

// Less what may be read, a count would tell what may not.
TEST_F(VtrPrivacyTest, HiddenRoutesAreNotCounted) {
  VtrOptions options;
  options.recipients = {{all_.public_key()}, {auditor_.public_key(), {"counters"}}};
  options.redact = {{{"routing"}, [](uint64_t, int64_t position) { return position < 10; }}};
  write_log(at("run.vtr"), layout_of(3, 8, 2), 100, options);
  VtrReader reader(at("run.vtr"), auditor_);
  uint64_t counted = 0;
  for (VtrPage page; reader.next(page);) counted += page.expert_use_tokens;
  EXPECT_EQ(counted, 90u);
}

// Whoever has the model finds each token by them.
TEST_F(VtrPrivacyTest, WhatTellsTokensIsNotReadWithoutThem) {
  for (const char* name : {"routing", "norms", "digests", "router_probs", "hidden_states"}) {
    VtrOptions options;
    options.recipients = {{all_.public_key()}, {auditor_.public_key(), {name}}};
    EXPECT_EQ(kind_of([&] { VtrLog(at("x.vtr"), some_header(), options); }, "'counters'"),
              ErrorKind::kInvalidArgument);
    options.recipients[1].groups.push_back("tokens");
    write_log(at("y.vtr"), layout_of(3, 8, 2), 10, options);
    EXPECT_EQ(verify_vtr(at("y.vtr"), {}, auditor_).seal, Seal::kComplete);
  }
}

// The norm that enters the first layer is the embedding's: it goes with the tokens, and so do the
// digests, which are over the token's id.
TEST_F(VtrPrivacyTest, WithTokensGoesWhatIsOfTheEmbeddingAlone) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull}) {
    VtrOptions options;
    options.detail = detail;
    options.redact = {{{"tokens"}, {}}};
    const auto level = detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard;
    const AuditLayout layout = layout_of(3, 8, 2, level);
    const auto expected = write_log(at("run.vtr"), layout, 30, options);
    EXPECT_EQ(verify_vtr(at("run.vtr")).seal, Seal::kComplete);
    const std::vector<VtrPage> pages = read_pages(at("run.vtr"));
    ASSERT_EQ(pages.size(), 1u);
    for (size_t i = 0; i < 30; ++i) {
      const TokenRecord& record = pages[0].records[i];
      EXPECT_EQ(record.token, -1);
      EXPECT_TRUE(std::isnan(record.layers[0].residual_norm));
      EXPECT_FALSE(std::isnan(record.layers[1].residual_norm));
      EXPECT_EQ(pages[0].digests[i], 0u);
    }
    EXPECT_TRUE(pages[0].layer_marks.empty());
  }
}

TEST_F(VtrPrivacyTest, WithoutAKeyTheSealStandsAndNothingIsRead) {
  write_encrypted();
  const VtrReport report = verify_vtr(at("run.vtr"), seal_.public_key());
  EXPECT_EQ(report.seal, Seal::kComplete) << report.problem;
  EXPECT_EQ(report.counts.positions.captured, 100u);
  EXPECT_EQ(report.closed_groups, 5 * 9u);
  EXPECT_EQ(report.header.sealed_keys.size(), 2u);
  for (const TokenRecord& record : read_with(at("run.vtr"), {})) {
    EXPECT_EQ(record.token, -1);
    EXPECT_EQ(record.layers[0].routes[0].expert, -1);
    EXPECT_TRUE(std::isnan(record.layers[0].residual_norm));
  }
  EXPECT_EQ(kind_of([&] { VtrReader(at("run.vtr"), stranger_); }, "recipient"),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { verify_vtr(at("run.vtr"), {}, stranger_); }, "run.vtr"),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { VtrReader(at("run.vtr"), seal_); }, "recipient"),
            ErrorKind::kInvalidArgument)
      << "who seals a log need not be able to read it";
}

TEST_F(VtrPrivacyTest, NoPlainTextIsInTheFile) {
  VtrOptions options;
  options.text = true;
  write_log(at("open.vtr"), some_layout(), 400, options);
  options.recipients = {{all_.public_key()}};
  write_log(at("run.vtr"), some_layout(), 400, options);
  // One long piece would be found in an open log, however it is compressed.
  const auto write_secret = [&](const std::string& name, std::vector<VtrRecipient> recipients,
                                std::vector<VtrRedaction> redact) {
    VtrOptions secret;
    secret.text = true;
    secret.recipients = std::move(recipients);
    secret.redact = std::move(redact);
    VtrLog log(at(name), some_header(), overwriting(secret),
               [](int32_t) { return "the-patient-is-called-so"; });
    const AuditLayout layout = some_layout();
    Rng rng(3);
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    send_run(log.sink(), layout, 20, rng);
    log.finish("length");
    return read(at(name)).find("patient") != std::string::npos;
  };
  EXPECT_TRUE(write_secret("a.vtr", {}, {}));
  EXPECT_FALSE(write_secret("b.vtr", {{all_.public_key()}}, {}));
  EXPECT_FALSE(write_secret("c.vtr", {}, {{{"text"}, {}}}));
  const auto is_not_nine = [](uint64_t, int64_t position) { return position != 9; };
  EXPECT_TRUE(write_secret("d.vtr", {}, {{{"text"}, is_not_nine}}));
}

TEST_F(VtrPrivacyTest, RedactionAtCapture) {
  const auto is_prompt = [](uint64_t, int64_t position) { return position < 31; };
  for (const bool is_encrypted : {false, true}) {
    VtrOptions options;
    options.text = true;
    options.page_tokens = 20;
    options.seal = seal_;
    options.redact = {{{"tokens", "text", "digests"}, is_prompt}, {{"routing"}, {}}};
    if (is_encrypted) options.recipients = {{all_.public_key()}};
    const auto expected = write_log(at("run.vtr"), some_layout(), 90, options);
    const VtrReport report = verify_vtr(at("run.vtr"), seal_.public_key(), all_);
    EXPECT_EQ(report.seal, Seal::kComplete) << report.problem;
    EXPECT_EQ(report.redacted_groups, 2 * 3u + 2 * 5u) << "with the routing the layers' marks";
    std::vector<std::string> text;
    const auto records = read_with(at("run.vtr"), all_, &text);
    ASSERT_EQ(records.size(), 90u);
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(records[i].token, i < 31 ? -1 : expected[i].token);
      EXPECT_EQ(records[i].layers[1].routes[1].expert, -1);
      EXPECT_EQ(records[i].has_prediction, expected[i].has_prediction);
    }
    // The same log, redacted later, leaves out the same.
    options.redact.clear();
    write_log(at("later.vtr"), some_layout(), 90, options);
    redact_vtr(at("later.vtr"), at("once.vtr"), {{"tokens", "text", "digests"}, is_prompt}, all_,
               true);
    redact_vtr(at("once.vtr"), at("twice.vtr"), {{"routing"}, {}}, {}, true);
    const auto later = read_with(at("twice.vtr"), all_);
    ASSERT_EQ(later.size(), records.size());
    for (size_t i = 0; i < records.size(); ++i) {
      EXPECT_EQ(later[i].token, records[i].token);
      EXPECT_EQ(later[i].layers[1].routes[1].expert, -1);
    }
    EXPECT_EQ(verify_vtr(at("twice.vtr"), seal_.public_key(), all_).redacted_groups,
              report.redacted_groups);
  }
}

TEST_F(VtrPrivacyTest, RedactingWhatIsClosed) {
  write_encrypted();
  const VtrRedaction rows{{"tokens"}, [](uint64_t, int64_t position) { return position == 5; }};
  EXPECT_EQ(kind_of([&] { redact_vtr(at("run.vtr"), at("x.vtr"), rows, auditor_); }, "encrypted"),
            ErrorKind::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(at("x.vtr")));
  redact_vtr(at("run.vtr"), at("x.vtr"), {{"tokens", "text"}, {}});
  const VtrReport report = verify_vtr(at("x.vtr"), seal_.public_key(), all_);
  EXPECT_EQ(report.seal, Seal::kComplete) << report.problem;
  EXPECT_EQ(report.redacted_groups, 4 * 5u) << "with tokens digests and marks";
  redact_vtr(at("run.vtr"), at("y.vtr"), rows, all_);
  EXPECT_EQ(verify_vtr(at("y.vtr"), seal_.public_key(), all_).redacted_groups, 3u);
  EXPECT_EQ(read_with(at("y.vtr"), {})[5].token, -1);
  EXPECT_GE(read_with(at("y.vtr"), {})[6].token, 0) << "the rest of that page is in the clear";
}

TEST_F(VtrPrivacyTest, LevelCounters) {
  VtrOptions options;
  options.detail = LogDetail::kCounters;
  options.recipients = {{all_.public_key()}};
  write_log(at("run.vtr"), some_layout(), 50, options);
  EXPECT_EQ(verify_vtr(at("run.vtr")).seal, Seal::kComplete);
  EXPECT_EQ(verify_vtr(at("run.vtr")).closed_groups, 1u);
  const VtrReport report = verify_vtr(at("run.vtr"), {}, all_);
  EXPECT_EQ(report.seal, Seal::kComplete) << report.problem;
  EXPECT_EQ(report.counts.positions.counted, 50u);
  EXPECT_TRUE(read_pages(at("run.vtr"))[0].expert_uses.empty());
  redact_vtr(at("run.vtr"), at("x.vtr"), {{"counters"}, {}});
  EXPECT_EQ(verify_vtr(at("x.vtr")).seal, Seal::kComplete);
  EXPECT_EQ(verify_vtr(at("x.vtr")).redacted_groups, 1u);
}

// A log whose head no reader takes would be worth nothing.
TEST_F(VtrPrivacyTest, TraceIdsThatAreNone) {
  for (const std::string& id :
       {std::string("4BF92F3577B34DA6A3CE929D0E0E4736"), std::string(32, '0'), std::string("run 7"),
        std::string(5000, 'a')}) {
    VtrOptions options;
    options.trace_id = id;
    EXPECT_EQ(kind_of([&] { VtrLog(at("run.vtr"), some_header(), options); }, "'trace_id'"),
              ErrorKind::kInvalidArgument)
        << id;
    EXPECT_TRUE(names().empty());
  }
}

TEST_F(VtrPrivacyTest, WhatCannotBeIsRefused) {
  const auto open = [&](std::vector<VtrRecipient> recipients, std::vector<VtrRedaction> redact) {
    VtrOptions options;
    options.recipients = std::move(recipients);
    options.redact = std::move(redact);
    VtrLog log(at("run.vtr"), some_header(), overwriting(options));
    const AuditLayout layout = some_layout();
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
  };
  const PublicKey key = all_.public_key();
  EXPECT_EQ(kind_of([&] { open({{key, {"prompt"}}}, {}); }, "prompt"), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { open({}, {{{"index"}, {}}}); }, "index"), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of(
                [&] {
                  open({{key, {"routing"}}}, {});
                },
                "'tokens'"),
            ErrorKind::kInvalidArgument);
  write_log(at("own.vtr"), some_layout(), 20, {});
  std::filesystem::create_symlink(at("own.vtr"), at("link.vtr"));
  for (const char* target : {"own.vtr", "link.vtr"}) {
    EXPECT_EQ(kind_of(
                  [&] {
                    redact_vtr(at("own.vtr"), at(target), {{"tokens"}, {}});
                  },
                  target),
              ErrorKind::kInvalidArgument);
  }
  EXPECT_EQ(verify_vtr(at("own.vtr")).redacted_groups, 0u);
  PublicKey no_point{};
  no_point.fill(0xFF);
  EXPECT_EQ(kind_of([&] { open({{no_point}}, {}); }, "ffff"), ErrorKind::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(at("run.vtr")));
}

// A box that another recipient's key opens, and a ciphertext that was changed, with chain and
// signatures made to fit: still broken for whoever can open it.
TEST_F(VtrPrivacyTest, AForgedBoxIsSeen) {
  write_encrypted();
  audit::FrameReader reader(at("run.vtr"));
  VtrHeader header = reader.header();
  std::swap(header.sealed_keys[0].boxes[0].sealed, header.sealed_keys[0].boxes[1].sealed);
  audit::Bytes log(audit::kMagic.begin(), audit::kMagic.end()), head;
  audit::encode_header(header, reader.groups(), head);
  audit::Digest chain{};
  audit::append_frame(log, audit::FrameTag::kHead, head, {}, seal_, chain);
  audit::Frame frame;
  while (reader.next(frame)) {
    audit::append_frame(log, frame.tag, frame.head, frame.payload, seal_, chain);
  }
  write(at("forged.vtr"), {reinterpret_cast<const char*>(log.data()), log.size()});
  EXPECT_EQ(verify_vtr(at("forged.vtr"), seal_.public_key()).seal, Seal::kComplete);
  const VtrReport report = verify_vtr(at("forged.vtr"), seal_.public_key(), all_);
  EXPECT_EQ(report.seal, Seal::kBroken);
  EXPECT_NE(report.problem.find("does not open"), std::string::npos) << report.problem;
  header.sealed_keys[0].boxes[0].sealed[40] ^= 1;
  head.clear();
  audit::encode_header(header, reader.groups(), head);
  log.assign(audit::kMagic.begin(), audit::kMagic.end());
  chain = {};
  audit::append_frame(log, audit::FrameTag::kHead, head, {}, seal_, chain);
  write(at("forged.vtr"), {reinterpret_cast<const char*>(log.data()), log.size()});
  EXPECT_EQ(verify_vtr(at("forged.vtr"), seal_.public_key(), all_).seal, Seal::kBroken);
}

}  // namespace
}  // namespace vitrine
