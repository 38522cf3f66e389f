// SPDX-License-Identifier: Apache-2.0
// What may go wrong with a log, and that nothing is left behind then.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "json_log_fixture.h"
#include "record_builder.h"

namespace vitrine {
namespace {

using namespace audit_test;
using nlohmann::json;
namespace fs = std::filesystem;

class JsonLogFailureTest : public JsonLogTest {};

TEST_F(JsonLogFailureTest, OtherExtensionsAreUnsupported) {
  for (const std::string name : {"out.csv", "out", "out.json.gz", "out.JSON", ".json", ""}) {
    try {
      JsonLog log(at(name), {});
      FAIL() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(error.what()).find(".json"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(at(name)), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(names().empty());
}

void expect_io_error(const std::string& path, const std::string& part) {
  try {
    JsonLog log(path, {});
    FAIL() << path;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kIo);
    const std::string what = error.what();
    EXPECT_NE(what.find(path), std::string::npos) << what;
    EXPECT_NE(what.find(part), std::string::npos) << what;
    EXPECT_EQ(what.find('\n'), std::string::npos) << what;
  }
}

TEST_F(JsonLogFailureTest, UnwritablePathsFailAtOnce) {
  expect_io_error(at("missing/out.json"), "No such file or directory");
  fs::create_directory(at("folder.json"));
  expect_io_error(at("folder.json"), "is a folder");
  ASSERT_EQ(::mkfifo(at("pipe.json").c_str(), 0600), 0);
  expect_io_error(at("pipe.json"), "not a regular file");
  write(at("file"), "x");
  expect_io_error(at("file/out.json"), "Not a directory");
  expect_io_error(at(std::string(251, 'n') + ".json"), "File name too long");
  expect_io_error("/proc/out.json", "");
  EXPECT_EQ(names(), (std::vector<std::string>{"file", "folder.json", "pipe.json"}));
  if (::geteuid() == 0) return;  // root may write everywhere
  fs::permissions(folder_, fs::perms::owner_read | fs::perms::owner_exec);
  expect_io_error(at("out.json"), "Permission denied");
  fs::permissions(folder_, fs::perms::owner_all);
}

TEST_F(JsonLogFailureTest, DestructorLeavesNothingAndKeepsTheOldFile) {
  write(at("out.json"), "old");
  Rng rng(13);
  {
    JsonLog log(at("out.json"), some_header(), {}, true);
    EXPECT_EQ(names().size(), 2u) << "the temporary stands beside the target";
    const AuditLayout layout = four_layers();
    log.sink().open(layout, audit_record_bytes(layout, 8, 8));
    for (uint64_t pass = 0; pass < 3000; ++pass) {
      send(log.sink(), build_pass(layout, pass, uniform(rng, 1, 8), rng).bytes);
    }
  }
  EXPECT_EQ(names(), std::vector<std::string>{"out.json"});
  EXPECT_EQ(read(at("out.json")), "old");
}

TEST_F(JsonLogFailureTest, ReplacesAFileBehindALinkAndKeepsItsPermissions) {
  write(at("real.json"), "old");
  fs::permissions(at("real.json"), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("real.json", at("link.json"));
  JsonLog log(at("link.json"), {}, {}, true);
  log.finish("length");
  EXPECT_TRUE(fs::is_symlink(at("link.json")));
  EXPECT_EQ(json::parse(read(at("real.json"))).at("stop_reason"), "length");
  EXPECT_EQ(fs::status(at("real.json")).permissions(),
            fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(names(), (std::vector<std::string>{"link.json", "real.json"}));
}

/// Files may not grow beyond `bytes` during its life: every write() past that fails, as on a full
/// disk, and there is no mount to make.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(JsonLogFailureTest, FullDiskKeepsTheOldFileAndNeverBlocksTheStep) {
  const AuditLayout layout = four_layers(AuditLevel::kFull);
  Rng rng(14);
  std::vector<std::vector<std::byte>> passes;
  for (uint64_t pass = 0; pass < 500; ++pass) {
    passes.push_back(build_pass(layout, pass, 16, rng).bytes);
  }
  // In the head's write, in the middle of the records, and in the closing part.
  for (const size_t num_passes : {size_t{0}, size_t{500}, size_t{20}}) {
    write(at("out.json"), "old");
    JsonLog log(at("out.json"), some_header(), piece, true);
    const FileSizeLimit limit(100);
    log.sink().open(layout, audit_record_bytes(layout, 16, 16));
    for (size_t pass = 0; pass < num_passes; ++pass) {
      // Several rings' worth: the log's thread must keep releasing after its failure.
      for (int again = 0; again < 3; ++again) send(log.sink(), passes[pass]);
    }
    try {
      log.finish("length");
      FAIL() << num_passes;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_NE(std::string(error.what()).find(at("out.json")), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("File too large"), std::string::npos);
    }
    EXPECT_EQ(names(), std::vector<std::string>{"out.json"});
    EXPECT_EQ(read(at("out.json")), "old");
  }
}

TEST_F(JsonLogFailureTest, TemporaryIsGoneAsSoonAsAWriteFails) {
  const AuditLayout layout = four_layers(AuditLevel::kFull);
  Rng rng(15);
  JsonLog log(at("out.json"), {}, {}, true);
  const FileSizeLimit limit(1000);
  log.sink().open(layout, audit_record_bytes(layout, 16, 16));
  const std::vector<std::byte> bytes = build_pass(layout, 0, 16, rng).bytes;
  for (int i = 0; i < 10000 && !names().empty(); ++i) send(log.sink(), bytes);
  for (int i = 0; i < 1000 && !names().empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(names().empty());
  EXPECT_THROW(log.finish("length"), Error);
}

TEST_F(JsonLogFailureTest, BadRecordFailsTheLog) {
  write(at("out.json"), "old");
  const AuditLayout layout = four_layers();
  JsonLog log(at("out.json"), {}, {}, true);
  log.sink().open(layout, 1000);
  send(log.sink(), std::vector<std::byte>(64, std::byte{0xFF}));
  try {
    log.finish("length");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  }
  EXPECT_EQ(names(), std::vector<std::string>{"out.json"});
  EXPECT_EQ(read(at("out.json")), "old");
}

TEST_F(JsonLogFailureTest, WhatAHostThrowsComesBackFromFinish) {
  Rng rng(16);
  const AuditLayout layout = four_layers();
  for (const bool from_callback : {true, false}) {
    JsonLog log(at("out.json"), {}, [&](int32_t) -> std::string {
      if (!from_callback) throw std::out_of_range("host");
      return "x";
    });
    if (from_callback) log.on_record([](const TokenRecord&) { throw std::out_of_range("host"); });
    log.sink().open(layout, audit_record_bytes(layout, 1, 1));
    for (uint64_t pass = 0; pass < 50000; ++pass) {
      send(log.sink(), build_pass(layout, pass, 1, rng).bytes);
    }
    EXPECT_THROW(log.finish("length"), std::out_of_range);
    EXPECT_TRUE(names().empty());
  }
}

TEST_F(JsonLogFailureTest, MisuseIsRefused) {
  const AuditLayout layout = four_layers();
  JsonLog log(at("out.json"), {}, {}, true);
  AuditSink& sink = log.sink();
  EXPECT_THROW(sink.reserve(8), Error);
  sink.open(layout, 1000);
  sink.open(layout, 900);
  EXPECT_THROW(sink.open(layout, 1001), Error);
  EXPECT_THROW(sink.open(four_layers(AuditLevel::kFull), 1000), Error);
  log.finish("length");
  EXPECT_THROW(sink.reserve(8), Error);
  EXPECT_THROW(sink.open(layout, 1000), Error);
  EXPECT_THROW(log.finish("length"), Error);
  EXPECT_EQ(json::parse(read(at("out.json"))).at("counts").at("passes"), 0);
}

}  // namespace
}  // namespace vitrine
