// SPDX-License-Identifier: Apache-2.0
// Evidence is there before what it is of, is not overwritten, and leaks into no other file.
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "audit/spill_file.h"
#include "vitrine/audit_log.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
using Seal = VtrReport::Seal;
using EvidenceTest = VtrTest;

ErrorKind kind_of(const std::function<void()>& action, const std::string& word) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    return error.kind();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorKind::kInternal;
}

// What a step shows comes after its record was reserved; a process that is killed then leaves the
// head, under the log's name.
TEST_F(EvidenceTest, TheHeadIsThereBeforeTheFirstRecord) {
  VtrOptions options;
  options.page_seconds = 1000;
  for (const auto when : {VtrOptions::WhenBehind::kWait, VtrOptions::WhenBehind::kDrop,
                          VtrOptions::WhenBehind::kSpill}) {
    options.when_behind = when;
    const std::string path = at(std::to_string(static_cast<int>(when)) + ".vtr");
    const AuditLayout layout = layout_of(3, 8, 2);
    VtrLog log(path, some_header(), options, piece);
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    log.sink().on_event({AuditEvent::Kind::kCreated, 1, 0, 0, 0});
    EXPECT_FALSE(std::filesystem::exists(path));
    log.sink().reserve(audit_record_bytes(layout, 1, 1));
    const VtrReport report = verify_vtr(path);
    EXPECT_EQ(report.seal, Seal::kOpen) << report.problem;
    EXPECT_GT(report.header.started_unix_ns, 0u);
    EXPECT_GT(report.header.started_monotonic_ns, 0u);
    EXPECT_EQ(report.counts.pages, 0u);
  }
}

TEST_F(EvidenceTest, ALogThatIsThereIsRefused) {
  write_log(at("run.vtr"), layout_of(3, 8, 2), 20);
  const std::string before = read(at("run.vtr"));
  EXPECT_EQ(kind_of([&] { VtrLog(at("run.vtr"), some_header()); }, "is there already"),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of(
                [&] {
                  redact_vtr(at("run.vtr"), at("run.vtr"), {{"text"}, {}});
                },
                "run.vtr"),
            ErrorKind::kInvalidArgument);
  write_log(at("other.vtr"), layout_of(3, 8, 2), 20);
  EXPECT_EQ(kind_of(
                [&] {
                  redact_vtr(at("other.vtr"), at("run.vtr"), {{"routing"}, {}});
                },
                "is there already"),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(read(at("run.vtr")), before);
  std::ofstream(at("run.json")) << "{}";
  EXPECT_EQ(kind_of([&] { JsonLog(at("run.json"), some_header()); }, "is there already"),
            ErrorKind::kInvalidArgument);
}

// Two runs that were given one name: the second one fails, whole, and the first one's log stays.
TEST_F(EvidenceTest, ALogThatCameMeanwhileIsNotReplaced) {
  const AuditLayout layout = layout_of(3, 8, 2);
  VtrLog late(at("run.vtr"), some_header(), {}, piece);
  late.sink().open(layout, audit_record_bytes(layout, 7, 7));
  write_log(at("first.vtr"), layout, 20);
  std::filesystem::rename(at("first.vtr"), at("run.vtr"));
  const std::string before = read(at("run.vtr"));
  EXPECT_EQ(
      kind_of([&] { late.sink().reserve(audit_record_bytes(layout, 1, 1)); }, "is there already"),
      ErrorKind::kInvalidArgument);
  EXPECT_EQ(read(at("run.vtr")), before);
}

TEST_F(EvidenceTest, AManifestThatIsThereIsRefused) {
  const std::string manifest = manifest_path(at("run.vtr"));
  std::ofstream(manifest) << "of a log that is gone";
  EXPECT_EQ(kind_of([&] { VtrLog(at("run.vtr"), some_header()); }, manifest),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(read(manifest), "of a log that is gone");
}

// The file has no name, but its bytes stand on the disk.
TEST_F(EvidenceTest, ASpilledRecordIsEncrypted) {
  audit::SpillFile spill(at(""));
  std::vector<std::byte> record(4096, std::byte{'s'});
  const std::string secret = "the-patient-is-called-so";
  std::memcpy(record.data() + 100, secret.data(), secret.size());
  spill.prepare(record.size());
  for (int i = 0; i < 3; ++i) {
    record[0] = std::byte(i);
    ASSERT_TRUE(spill.write(record));
  }
  EXPECT_FALSE(spill.write(std::vector<std::byte>(record.size() + 1))) << "no room was prepared";
  size_t spilled = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    if (target.find(".vitrine-spill-") == std::string::npos) continue;
    const std::string bytes = read(entry.path().string());
    spilled += bytes.size();
    EXPECT_EQ(bytes.find("patient"), std::string::npos);
    EXPECT_EQ(bytes.find("ssss"), std::string::npos);
  }
  EXPECT_GT(spilled, 3 * record.size());
  int count = 0;
  spill.drain([&](std::span<const std::byte> got) {
    record[0] = std::byte(count++);
    EXPECT_TRUE(std::ranges::equal(got, record));
  });
  EXPECT_EQ(count, 3);
  EXPECT_FALSE(spill.is_active());
}

}  // namespace
}  // namespace vitrine
