// SPDX-License-Identifier: Apache-2.0
// Seal, keys, redaction: what a changed log is never taken for.
#include <gtest/gtest.h>
#include <sodium.h>
#include <sys/stat.h>

#include "src/audit/vtr_pages.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
using Seal = VtrReport::Seal;

struct Extent {
  size_t offset = 0, bytes = 0;
};

/// Where each frame stands.
std::vector<Extent> frames_of(const std::string& path) {
  std::vector<Extent> frames;
  audit::FrameReader reader(path);
  frames.push_back({8, reader.head_frame().bytes.size()});
  audit::Frame frame;
  while (reader.next(frame)) frames.push_back({frame.offset, frame.bytes.size()});
  return frames;
}

std::string edited(const std::string& log, const std::vector<Extent>& frames, Rng& rng) {
  const auto below = [&](size_t bound) {
    return static_cast<size_t>(uniform(rng, 0, static_cast<int32_t>(bound) - 1));
  };
  const auto frame_text = [&](size_t i) { return log.substr(frames[i].offset, frames[i].bytes); };
  std::string text = log;
  switch (below(9)) {
    case 0: text[below(text.size())] ^= static_cast<char>(1 << below(8)); break;
    case 1: text[below(text.size())] = static_cast<char>(below(256)); break;
    case 2: text.resize(below(text.size())); break;
    case 3: text.insert(below(text.size() + 1), 1 + below(8), static_cast<char>(below(256))); break;
    case 4: text.erase(below(text.size()), 1 + below(200)); break;
    case 5: {  // two stretches of bytes change places
      const size_t a = below(text.size() / 2), b = text.size() / 2 + below(text.size() / 2);
      const size_t bytes = std::min(1 + below(64), text.size() - b);
      for (size_t i = 0; i < bytes; ++i) std::swap(text[a + i], text[b + i]);
      break;
    }
    case 6: {  // a frame is removed
      const size_t i = below(frames.size());
      text.erase(frames[i].offset, frames[i].bytes);
      break;
    }
    case 7: {  // two frames change places
      const size_t i = below(frames.size() - 1), j = i + 1 + below(frames.size() - i - 1);
      text = log.substr(0, frames[i].offset) + frame_text(j) +
             log.substr(frames[i].offset + frames[i].bytes,
                        frames[j].offset - frames[i].offset - frames[i].bytes) +
             frame_text(i) + log.substr(frames[j].offset + frames[j].bytes);
      break;
    }
    default: {  // a frame stands twice
      const size_t i = below(frames.size());
      text.insert(frames[below(frames.size())].offset, frame_text(i));
    }
  }
  return text;
}

TEST_F(VtrTest, NoneOfTenThousandEditsEndsAsComplete) {
  VtrOptions options;
  options.page_tokens = 20;
  Rng rng(23);
  size_t num_open = 0, num_broken = 0;
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kFull, LogDetail::kCounters}) {
    options.detail = detail;
    options.seal =
        detail == LogDetail::kStandard ? std::optional(SealKey::generate()) : std::nullopt;
    options.text = detail == LogDetail::kFull;
    write_log(at("run.vtr"),
              four_layers(detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard),
              100, options);
    ASSERT_EQ(verify_vtr(at("run.vtr")).seal, Seal::kComplete);
    const std::string log = read(at("run.vtr"));
    const auto frames = frames_of(at("run.vtr"));
    ASSERT_EQ(frames.size(), 8u) << "head, six pages, end";
    for (int i = 0; i < 4000;) {
      const std::string text = edited(log, frames, rng);
      if (text == log) continue;
      ++i;
      write(at("edit.vtr"), text);
      const VtrReport report = verify_vtr(at("edit.vtr"));
      ASSERT_NE(report.seal, Seal::kComplete) << "edit " << i;
      ++(report.seal == Seal::kOpen ? num_open : num_broken);
      if (report.seal == Seal::kBroken) {
        EXPECT_FALSE(report.problem.empty());
        EXPECT_EQ(report.problem.find('\n'), std::string::npos);
        EXPECT_LE(report.offset, text.size());
      }
    }
  }
  std::printf("%zu edits: %zu open, %zu broken\n", num_open + num_broken, num_open, num_broken);
  EXPECT_GT(num_broken, num_open);
  EXPECT_GT(num_open, 100u);
}

/// Someone who knows the format, but not the key, writes a chain of his own.
TEST_F(VtrTest, AForgedChainNeedsTheKey) {
  const SealKey key = SealKey::generate(), other = SealKey::generate();
  VtrOptions options;
  options.seal = key;
  options.page_tokens = 20;
  write_log(at("run.vtr"), four_layers(), 60, options);
  EXPECT_EQ(verify_vtr(at("run.vtr"), key.public_key()).seal, Seal::kComplete);
  EXPECT_TRUE(verify_vtr(at("run.vtr"), key.public_key()).is_key_given);
  const VtrReport wrong = verify_vtr(at("run.vtr"), other.public_key());
  EXPECT_EQ(wrong.seal, Seal::kBroken);
  EXPECT_NE(wrong.problem.find(public_key_text(key.public_key())), std::string::npos);

  // The same frames, hashed and signed again by another key; the head keeps the first one's name.
  audit::Bytes forged(audit::kMagic.begin(), audit::kMagic.end());
  audit::Digest chain{};
  audit::FrameReader reader(at("run.vtr"));
  const auto copy = [&](const audit::Frame& frame) {
    audit::append_frame(forged, frame.tag, frame.head, frame.payload, other, chain);
  };
  copy(reader.head_frame());
  audit::Frame frame;
  while (reader.next(frame)) copy(frame);
  write(at("forged.vtr"), {reinterpret_cast<const char*>(forged.data()), forged.size()});
  EXPECT_EQ(verify_vtr(at("forged.vtr")).seal, Seal::kBroken);
  EXPECT_NE(verify_vtr(at("forged.vtr")).problem.find("signature"), std::string::npos);
}

/// A whole log by the right key whose counts lie is no complete one.
TEST_F(VtrTest, CountsAreCountedAndNotBelieved) {
  const SealKey key = SealKey::generate();
  VtrOptions options;
  options.seal = key;
  options.page_tokens = 20;
  write_log(at("run.vtr"), four_layers(), 60, options);
  // Each page left out in turn, and everything after it chained and signed anew.
  for (size_t left_out = 1; left_out <= 3; ++left_out) {
    audit::Bytes forged(audit::kMagic.begin(), audit::kMagic.end());
    audit::Digest chain{};
    audit::FrameReader reader(at("run.vtr"));
    audit::append_frame(forged, audit::FrameTag::kHead, reader.head_frame().head, {}, key, chain);
    audit::Frame frame;
    for (size_t i = 1; reader.next(frame); ++i) {
      if (i != left_out)
        audit::append_frame(forged, frame.tag, frame.head, frame.payload, key, chain);
    }
    write(at("short.vtr"), {reinterpret_cast<const char*>(forged.data()), forged.size()});
    EXPECT_EQ(verify_vtr(at("short.vtr"), key.public_key()).seal, Seal::kBroken);
  }
}

TEST_F(VtrTest, KeysAreFiles) {
  const SealKey made = SealKey::load_or_create(at("key"));
  struct stat status {};
  ASSERT_EQ(::stat(at("key").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(names(), (std::vector<std::string>{"key", "key.pub"}));
  EXPECT_EQ(SealKey::load_or_create(at("key")).public_key(), made.public_key());
  EXPECT_EQ(SealKey::load(at("key")).public_key(), made.public_key());
  EXPECT_EQ(load_public_key(at("key.pub")), made.public_key());
  const auto kind_of = [](auto action) {
    try {
      action();
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind_of([&] { load_public_key(at("key")); }), ErrorKind::kBadFile);
  EXPECT_EQ(kind_of([&] { SealKey::load(at("key.pub")); }), ErrorKind::kBadFile);
  EXPECT_EQ(kind_of([&] { SealKey::load(at("gone")); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { made.save(at("key")); }), ErrorKind::kInvalidArgument);
  for (const std::string text :
       {"", "vitrine-ed25519-secret-1 ", "vitrine-ed25519-secret-1 zz", "PRIVATE KEY\nabc"}) {
    write(at("bad"), text);
    EXPECT_EQ(kind_of([&] { SealKey::load(at("bad")); }), ErrorKind::kBadFile) << text;
  }
  write(at("half.pub"), "taken");
  EXPECT_EQ(kind_of([&] { SealKey::load_or_create(at("half")); }), ErrorKind::kInvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(at("half"))) << "nothing half-made";
}

TEST_F(VtrTest, ARedactedLogStillVerifies) {
  const SealKey key = SealKey::generate();
  VtrOptions options;
  options.seal = key;
  options.text = true;
  options.page_tokens = 30;
  const auto expected = write_log(at("run.vtr"), four_layers(), 100, options);
  // Some rows of what would tell the text, and one column altogether.
  VtrRedaction rows;
  rows.groups = {"tokens", "text", "prediction", "digests"};
  rows.rows = [](uint64_t, int64_t position) { return position < 45; };
  redact_vtr(at("run.vtr"), at("rows.vtr"), rows);
  redact_vtr(at("rows.vtr"), at("both.vtr"), {.groups = {"routing"}, .rows = {}});
  const VtrReport report = verify_vtr(at("both.vtr"), key.public_key());
  EXPECT_EQ(report.seal, Seal::kComplete) << report.problem;
  EXPECT_EQ(report.redacted_groups, 2 * 4u + 2 * 4u) << "with the routing the layers' marks";
  EXPECT_EQ(report.counts.positions.captured, 100u);
  const auto records = read_records(at("both.vtr"));
  ASSERT_EQ(records.size(), 100u);
  for (size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].token, i < 45 ? -1 : expected[i].token);
    EXPECT_EQ(records[i].layers[0].routes[0].expert, -1);
    // What enters the first layer is the token's embedding.
    EXPECT_EQ(std::isnan(records[i].layers[0].residual_norm),
              i < 45 || std::isnan(expected[i].layers[0].residual_norm));
    for (size_t l = i < 45 ? 1 : 0; l < 4; ++l) {
      expect_same(records[i].layers[l].residual_norm,
                  bfloat16(expected[i].layers[l].residual_norm));
    }
    EXPECT_EQ(records[i].has_prediction, i >= 45 && expected[i].has_prediction);
  }
  size_t row = 0;
  for (const VtrPage& page : read_pages(at("rows.vtr"))) {
    for (size_t i = 0; i < page.records.size(); ++i, ++row) {
      EXPECT_EQ(page.is_redacted[i], row < 45);
      if (!page.text.empty()) {
        EXPECT_EQ(page.text[i], row < 45 ? "" : piece(expected[row].token));
      }
    }
  }
  // What was left out is nowhere in the file: neither the text nor the salts that would prove a
  // guess at it.
  const std::string before = read(at("run.vtr")), after = read(at("both.vtr"));
  EXPECT_LT(after.size(), before.size());
  audit::FrameReader reader(at("run.vtr"));
  const audit::PageOpener opener(reader.header(), reader.groups());
  audit::Frame frame;
  audit::OpenPage page;
  ASSERT_TRUE(reader.next(frame));
  opener.open(frame, true, page);
  for (size_t group = 0; group < page.groups.size(); ++group) {
    const auto& salt_key = page.groups[group].key;
    const std::string text(salt_key.begin(), salt_key.end());
    const auto id = reader.groups()[group].id;
    const bool is_left_out = id != audit::GroupId::kIndex && id != audit::GroupId::kEvents &&
                             id != audit::GroupId::kNorms && id != audit::GroupId::kSampler;
    EXPECT_EQ(after.find(text) == std::string::npos, is_left_out) << group;
  }
  // A redacted log that was changed is broken.
  Rng rng(3);
  const auto frames = frames_of(at("both.vtr"));
  for (int i = 0; i < 1000;) {
    const std::string text = edited(after, frames, rng);
    if (text == after) continue;
    ++i;
    write(at("edit.vtr"), text);
    EXPECT_NE(verify_vtr(at("edit.vtr")).seal, Seal::kComplete);
  }
  EXPECT_THROW(redact_vtr(at("run.vtr"), at("x.vtr"), {.groups = {"prompt"}, .rows = {}}), Error);
  EXPECT_FALSE(std::filesystem::exists(at("x.vtr")));
}

TEST_F(VtrTest, FilesThatAreNoLog) {
  const auto kind_of = [this](const std::string& text) {
    write(at("x.vtr"), text);
    try {
      VtrReader reader(at("x.vtr"));
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kInternal;
  };
  EXPECT_EQ(kind_of(""), ErrorKind::kBadFile);
  EXPECT_EQ(kind_of("{\"schema\":\"vitrine.audit/1\"}"), ErrorKind::kBadFile);
  write_log(at("run.vtr"), four_layers(), 10);
  std::string log = read(at("run.vtr"));
  EXPECT_EQ(kind_of(log.substr(0, 60)), ErrorKind::kBadFile);
  EXPECT_EQ(verify_vtr(at("x.vtr")).seal, Seal::kBroken);
  // Another version, with the chain made to fit.
  audit::FrameReader reader(at("run.vtr"));
  audit::Bytes head(reader.head_frame().head.begin(), reader.head_frame().head.end());
  head[0] = 1;
  audit::Bytes text(audit::kMagic.begin(), audit::kMagic.end());
  audit::Digest chain{};
  audit::append_frame(text, audit::FrameTag::kHead, head, {}, SealKey::generate(), chain);
  EXPECT_EQ(kind_of({reinterpret_cast<const char*>(text.data()), text.size()}),
            ErrorKind::kUnsupported);
  // A head whose chain is made as versions before 5 did is refused alike.
  static constexpr uint8_t kPersonal[] = "vtr/1 page\0\0\0\0\0";
  audit::Bytes content(32);
  audit::ByteWriter(content).u32(static_cast<uint32_t>(audit::FrameTag::kHead));
  audit::ByteWriter(content).raw(head);
  const size_t hash_at = audit::kMagic.size() + audit::kFrameHeadBytes + head.size();
  crypto_generichash_blake2b_salt_personal(&text[hash_at], 32, content.data(), content.size(),
                                           nullptr, 0, nullptr, kPersonal);
  EXPECT_EQ(kind_of({reinterpret_cast<const char*>(text.data()), text.size()}),
            ErrorKind::kUnsupported);
  text[hash_at] ^= 1;
  EXPECT_EQ(kind_of({reinterpret_cast<const char*>(text.data()), text.size()}),
            ErrorKind::kBadFile);
  EXPECT_THROW(VtrReader(at("gone.vtr")), Error);
  EXPECT_THROW(VtrReader(folder_.string()), Error);
}

}  // namespace
}  // namespace vitrine
