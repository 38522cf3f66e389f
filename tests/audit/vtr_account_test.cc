// SPDX-License-Identifier: Apache-2.0
// Every position is in exactly one state, whatever happens to sequences, ring and disk.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>

#include "src/audit/account.h"
#include "vtr_fixture.h"

namespace vitrine {
namespace {

using namespace audit_test;
using Kind = AuditEvent::Kind;
using OnError = VtrOptions::OnError;
using WhenBehind = VtrOptions::WhenBehind;

VtrReport complete(const std::string& path) {
  const VtrReport report = verify_vtr(path);
  EXPECT_EQ(report.seal, VtrReport::Seal::kComplete) << report.problem;
  return report;
}

uint64_t lost(const VtrReport& report, LostReason reason) {
  return report.counts.positions.lost[static_cast<size_t>(reason)];
}

class Sender {
 public:
  explicit Sender(VtrLog& log, AuditLayout layout = four_layers())
      : sink_(log.sink()), layout_(std::move(layout)) {
    sink_.open(layout_, audit_record_bytes(layout_, 64, 64));
  }
  void tokens(uint64_t sequence, int32_t first, int32_t count) {
    send(sink_, build_step(layout_, pass_++, sequence, first, count, rng_).bytes);
  }
  void event(Kind kind, uint64_t sequence, int64_t length = 0, uint64_t source = 0,
             int64_t before = 0) {
    sink_.on_event({kind, sequence, source, length, before});
  }

 private:
  AuditSink& sink_;
  AuditLayout layout_;
  Rng rng_{1};
  uint64_t pass_ = 0;
};

TEST_F(VtrTest, ForkedTruncatedReleased) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kCounters}) {
    VtrOptions options;
    options.detail = detail;
    options.page_tokens = 5;  // events fall on every side of a page's end
    VtrLog log(at("run.vtr"), some_header(), overwriting(options));
    Sender sender(log);
    sender.event(Kind::kCreated, 1);
    sender.tokens(1, 0, 10);
    sender.event(Kind::kForked, 2, 10, 1);  // 10 replayed
    sender.tokens(2, 10, 4);
    sender.event(Kind::kTruncated, 2, 8, 0, 14);  // 4 captured and 2 replayed discarded
    sender.tokens(2, 8, 3);
    sender.tokens(1, 10, 1);
    sender.event(Kind::kReleased, 1, 11);
    sender.event(Kind::kReleased, 2, 11);
    log.finish("length");
    const VtrReport report = complete(at("run.vtr"));
    const VtrAccount& positions = report.counts.positions;
    EXPECT_EQ(detail == LogDetail::kStandard ? positions.captured : positions.counted, 14u);
    EXPECT_EQ(positions.replayed, 8u);
    EXPECT_EQ(positions.discarded, 6u);
    EXPECT_EQ(positions.num_lost(), 0u);
    EXPECT_EQ(positions.total(), 28u);
    EXPECT_EQ(report.counts.sequences, 2u);
    EXPECT_EQ(log.counts(), report.counts);
  }
}

TEST_F(VtrTest, WhatWasNotReportedIsLost) {
  VtrLog log(at("run.vtr"), some_header(), overwriting());
  Sender sender(log);
  sender.tokens(5, 7, 2);                      // 0 to 6: before the log
  sender.tokens(5, 12, 1);                     // 9 to 11: the recorder was off
  sender.event(Kind::kReleased, 5, 20);        // 13 to 19
  sender.event(Kind::kTruncated, 6, 4, 0, 9);  // 0 to 8 unknown, 5 of them undone
  sender.event(Kind::kForked, 7, 4, 6);
  sender.event(Kind::kCreated, 7);  // numbers may come again
  sender.tokens(7, 0, 1);
  sender.tokens(7, 0, 1);  // the same position again: undone without a word
  log.finish("length");
  const VtrReport report = complete(at("run.vtr"));
  EXPECT_EQ(lost(report, LostReason::kNotReported), 7u + 3 + 7 + 4);
  EXPECT_EQ(report.counts.positions.captured, 2u + 1 + 1);
  EXPECT_EQ(report.counts.positions.discarded, 5u + 1);
  EXPECT_EQ(report.counts.positions.replayed, 4u);
}

/// Blocks the log's thread in its callback until it is let go.
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    has_come_ = true;
    wake_.notify_all();
    wake_.wait(lock, [this] { return is_open_; });
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return has_come_; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    is_open_ = true;
    wake_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool has_come_ = false, is_open_ = false;
};

TEST_F(VtrTest, ASinkThatIsTooSlow) {
  for (const WhenBehind policy : {WhenBehind::kDrop, WhenBehind::kSpill}) {
    VtrOptions options;
    options.when_behind = policy;
    options.ring_bytes = 1 << 14;
    VtrLog log(at("run.vtr"), some_header(), overwriting(options));
    Gate gate;
    log.on_record([&](const TokenRecord&) { gate.pass(); });
    Sender sender(log);
    sender.event(Kind::kCreated, 1);
    sender.event(Kind::kCreated, 2);
    sender.tokens(1, 0, 1);
    gate.wait_for_arrival();
    // Far more than the ring holds, and this thread never waits.
    for (int32_t i = 1; i < 2000; ++i) {
      sender.tokens(1, i, 1);
      sender.tokens(2, i - 1, 1);
    }
    sender.event(Kind::kTruncated, 1, 1000, 0, 2000);
    sender.event(Kind::kForked, 3, 1000, 1);
    gate.open();
    for (int32_t i = 1000; i < 1500; ++i) sender.tokens(3, i, 1);
    sender.event(Kind::kReleased, 3, 1500);
    log.finish("length");
    const VtrReport report = complete(at("run.vtr"));
    EXPECT_EQ(report.counts.positions.total(), 2000u + 1999 + 1500);
    EXPECT_EQ(report.counts.positions.replayed, 1000u);
    EXPECT_EQ(report.counts.positions.discarded, 1000u);
    if (policy == WhenBehind::kDrop) {
      EXPECT_GT(lost(report, LostReason::kSinkSlow), 1000u);
      EXPECT_EQ(lost(report, LostReason::kSinkSlow), report.counts.positions.num_lost());
    } else {
      EXPECT_EQ(report.counts.positions.num_lost(), 0u);
      EXPECT_EQ(report.counts.tokens, 2000u + 1999 + 500);
    }
    EXPECT_EQ(names(), std::vector<std::string>{"run.vtr"}) << "the spilt records have no name";
  }
}

// Nothing is lost where the step may wait, and a ring is never smaller than two records.
TEST_F(VtrTest, AStepThatWaitsForItsLog) {
  for (const size_t ring_bytes : {size_t{1}, size_t{1} << 14}) {
    VtrOptions options;
    options.when_behind = WhenBehind::kWait;
    options.ring_bytes = ring_bytes;
    VtrLog log(at("run.vtr"), some_header(), overwriting(options));
    Gate gate;
    log.on_record([&](const TokenRecord&) { gate.pass(); });
    Sender sender(log);
    sender.event(Kind::kCreated, 1);
    sender.tokens(1, 0, 1);
    gate.wait_for_arrival();
    std::atomic<int32_t> sent{1};
    std::thread step([&] {
      for (; sent < 3000; ++sent) sender.tokens(1, sent, 1);
    });
    for (int32_t before = 0; before != sent || before == 1;) {  // until it stands
      before = sent;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_LT(sent, 1000) << "the ring is full, and nothing was dropped";
    gate.open();
    step.join();
    log.finish("length");
    const VtrReport report = complete(at("run.vtr"));
    EXPECT_EQ(report.counts.positions.captured, 3000u);
    EXPECT_EQ(report.counts.positions.num_lost(), 0u);
  }
}

/// A disk that is full beyond `bytes`, for a while.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(VtrTest, AFullDiskFailsTheNextStep) {
  VtrOptions options;
  options.page_tokens = 50;
  VtrLog log(at("run.vtr"), some_header(), overwriting(options));
  Sender sender(log);
  sender.event(Kind::kCreated, 1);
  const FullDisk disk(20000);
  bool has_thrown = false;
  for (int32_t i = 0; i < 100000 && !has_thrown; ++i) {
    try {
      sender.tokens(1, i, 1);
    } catch (const Error& error) {
      has_thrown = true;
      EXPECT_EQ(error.kind(), ErrorKind::kIo);
      EXPECT_NE(std::string(error.what()).find("run.vtr"), std::string::npos);
    }
  }
  EXPECT_TRUE(has_thrown);
  EXPECT_THROW(log.finish("length"), Error);
  const VtrReport report = verify_vtr(at("run.vtr"));
  EXPECT_EQ(report.seal, VtrReport::Seal::kOpen) << report.problem;
  EXPECT_EQ(report.torn_bytes, 0u) << "half a page was taken back";
  EXPECT_GT(report.counts.tokens, 50u);
}

TEST_F(VtrTest, AFullDiskDegrades) {
  for (const LogDetail detail : {LogDetail::kStandard, LogDetail::kCounters}) {
    VtrOptions options;
    options.detail = detail;
    options.page_tokens = 50;
    options.on_error = OnError::kDegrade;
    VtrLog log(at("run.vtr"), some_header(), overwriting(options));
    std::atomic<int> seen{0};
    log.on_record([&](const TokenRecord&) { ++seen; });
    Sender sender(log);
    sender.event(Kind::kCreated, 1);
    for (int32_t i = 0; i < 120; ++i) sender.tokens(1, i, 1);
    while (seen < 120) std::this_thread::yield();
    {
      const FullDisk disk(std::filesystem::file_size(at("run.vtr")) + 100);
      for (int32_t i = 120; i < 250; ++i) sender.tokens(1, i, 1);
      sender.event(Kind::kForked, 2, 250, 1);
      sender.tokens(2, 250, 40);
      sender.event(Kind::kTruncated, 2, 200, 0, 290);
      while (seen < 290) std::this_thread::yield();
    }
    for (int32_t i = 250; i < 300; ++i) sender.tokens(1, i, 1);
    log.finish("length");
    const VtrReport report = complete(at("run.vtr"));
    EXPECT_EQ(report.counts.positions.total(), 300u + 250 + 40);
    EXPECT_GT(lost(report, LostReason::kWriteFailed), 100u);
    EXPECT_EQ(lost(report, LostReason::kWriteFailed), report.counts.positions.num_lost());
    EXPECT_EQ(log.counts(), report.counts);
  }
}

TEST_F(VtrTest, ABadRecordDegrades) {
  const AuditLayout layout = four_layers();
  Rng rng(1);
  for (const OnError on_error : {OnError::kFail, OnError::kDegrade}) {
    LogHeader header = some_header();
    header.vocab_size = 100;
    VtrOptions options;
    options.on_error = on_error;
    VtrLog log(at("run.vtr"), header, overwriting(options));
    log.sink().open(layout, audit_record_bytes(layout, 7, 7));
    for (int32_t i = 0; i < 50; ++i) {
      // Every other one names ids that the vocabulary lacks.
      BuiltPass built = build_step(layout, 0, 1, i, 1, rng, 100);
      if (i % 2 == 1) put(built.bytes, sizeof(AuditPassHeader) + 12, int32_t{100});
      try {
        send(log.sink(), built.bytes);
      } catch (const Error&) {
        break;
      }
    }
    if (on_error == OnError::kFail) {
      EXPECT_THROW(log.finish("length"), Error);
      continue;
    }
    log.finish("length");
    const VtrReport report = complete(at("run.vtr"));
    EXPECT_EQ(report.counts.positions.captured, 25u);
    EXPECT_EQ(lost(report, LostReason::kBadRecord), 25u);
  }
}

TEST_F(VtrTest, ManyRandomLives) {
  Rng rng(17);
  for (int round = 0; round < 40; ++round) {
    VtrOptions options;
    options.page_tokens = uniform(rng, 1, 40);
    options.detail = round % 3 == 0 ? LogDetail::kCounters : LogDetail::kStandard;
    VtrLog log(at("run.vtr"), some_header(), overwriting(options));
    Sender sender(log);
    std::map<uint64_t, int32_t> live;
    uint64_t next = 1, total = 0, discarded = 0;
    for (int step = 0; step < 300; ++step) {
      const int action = uniform(rng, 0, 9);
      auto some = live.begin();
      if (!live.empty()) std::advance(some, uniform(rng, 0, static_cast<int32_t>(live.size()) - 1));
      if (live.empty() || action == 0) {
        sender.event(Kind::kCreated, next);
        live[next++] = 0;
      } else if (action == 1) {
        sender.event(Kind::kForked, next, some->second, some->first);
        total += static_cast<uint64_t>(some->second);
        live[next++] = some->second;
      } else if (action == 2 && some->second > 0) {
        const int32_t length = uniform(rng, 0, some->second - 1);
        sender.event(Kind::kTruncated, some->first, length, 0, some->second);
        discarded += static_cast<uint64_t>(some->second - length);
        some->second = length;
      } else if (action == 3 && live.size() > 3) {
        sender.event(Kind::kReleased, some->first, some->second);
        live.erase(some);
      } else {
        const int32_t count = uniform(rng, 1, 5);
        sender.tokens(some->first, some->second, count);
        some->second += count;
        total += static_cast<uint64_t>(count);
      }
    }
    log.finish("length");
    const VtrReport report = complete(at("run.vtr"));
    EXPECT_EQ(report.counts.positions.total(), total);
    EXPECT_EQ(report.counts.positions.discarded, discarded);
    EXPECT_EQ(report.counts.positions.num_lost(), 0u);
  }
}

TEST(Account, ImpossibleEventsAreRefused) {
  audit::Account account;
  const auto refuses = [&](VtrEvent event) {
    const VtrAccount before = account.totals();
    EXPECT_THROW(account.apply(event), Error);
    EXPECT_EQ(account.totals(), before);
  };
  using Event = VtrEvent::Kind;
  refuses({.kind = Event::kReleased, .sequence = 1});
  EXPECT_THROW(account.capture(1, 0, 1), Error);
  account.apply({.kind = Event::kCreated, .sequence = 1});
  refuses({.kind = Event::kCreated, .sequence = 1});
  account.capture(1, 0, 3);
  EXPECT_THROW(account.capture(1, 4, 1), Error);
  EXPECT_THROW(account.capture(1, 2, 1), Error);
  refuses({.kind = Event::kTruncated, .sequence = 1, .first = 4});
  refuses({.kind = Event::kReleased, .sequence = 1, .first = 2});
  refuses({.kind = Event::kForked, .sequence = 2, .source = 1, .count = 2});
  refuses({.kind = Event::kForked, .sequence = 1, .source = 1, .count = 3});
  refuses({.kind = Event::kLost, .sequence = 1, .first = 5, .count = 1});
  account.apply({.kind = Event::kReplayed, .sequence = 1, .source = 9, .first = 3, .count = 2});
  EXPECT_EQ(account.totals().replayed, 2u);
  EXPECT_EQ(account.length(1), 5);
}

}  // namespace
}  // namespace vitrine
