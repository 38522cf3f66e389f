// SPDX-License-Identifier: Apache-2.0
#include "log_thread.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "blocked_signals.h"
#include "decode.h"

namespace vitrine::audit {
namespace {

// A wake-up costs the cores that generate more than a token's encoding does (16 us measured on a
// virtual machine), so the thread sleeps longer while the ring stays nearly empty.
constexpr auto kShortestSleep = std::chrono::milliseconds(1);
constexpr auto kLongestSleep = std::chrono::milliseconds(16);
constexpr size_t kBusyShare = 8;  // one drain took this part of the ring: the next follows at once
constexpr size_t kBusyRecords = 64;  // or so many records: it follows soon

}  // namespace

LogThread::LogThread(Options options, SpillFile* spill)
    : options_(std::move(options)),
      ring_(options_.ring_bytes, SlabRing::WhenFull::kWait),
      spill_(spill) {
  ring_.on_full([this] {
    const std::lock_guard lock(mutex_);
    is_ring_full_ = true;
    wake_.notify_one();
  });
}

void LogThread::start() {
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    throw Error(ErrorKind::kIo, options_.name + ": its thread cannot be started: " +
                                    error.code().message() + "; allow more threads");
  }
}

void LogThread::throw_ended() const {
  if (options_.ends_on_failure && failure_) std::rethrow_exception(failure_);
  throw Error(ErrorKind::kInvalidArgument,
              options_.name + ": is finished; give the engine another sink");
}

void LogThread::open(const AuditLayout& layout, size_t max_record_bytes) {
  if (has_ended_.load(std::memory_order_acquire)) throw_ended();
  if (is_open_) {
    // The ring's reader is at work, so it can be neither laid out again nor enlarged.
    if (!same_layout(layout, ring_.layout()) || max_record_bytes > largest_record_) {
      throw Error(ErrorKind::kInvalidArgument,
                  options_.name +
                      ": a second audit layout, expected one a log; finish this log and start "
                      "another");
    }
    return;
  }
  ring_.open(layout, max_record_bytes);
  largest_record_ = max_record_bytes;
  prepare(layout, max_record_bytes);
  std::unique_lock lock(mutex_);
  is_open_ = true;
  wake_.notify_one();
  begun_.wait(lock, [this] { return has_begun_; });
  if (failure_ && !options_.goes_on_unbegun) std::rethrow_exception(failure_);  // of begin()
}

void LogThread::stop(std::optional<std::string> reason) {
  {
    const std::lock_guard lock(mutex_);
    stop_reason_ = std::move(reason);
    has_ended_.store(true, std::memory_order_release);
    is_stopping_.store(true);
    wake_.notify_one();
  }
  thread_.join();
}

template <typename Add>
void LogThread::tell(const char* what, Add&& add) {
  if (has_ended_.load(std::memory_order_acquire)) return;
  try {
    const std::lock_guard lock(mutex_);
    add();
  } catch (const std::bad_alloc&) {
    log_message(LogLevel::kWarning, options_.name + ": no memory for the trace of " + what);
  }
}

void LogThread::add_failure(const ConstraintFailure& failure) {
  tell("a constraint's failure", [&] { told_.failures.push_back(failure); });
}

void LogThread::add_drafts(const DraftedPass& drafts) {
  tell("what was guessed", [&] { told_.drafts.push_back(drafts); });
}

LogThread::Told LogThread::new_told() {
  const std::lock_guard lock(mutex_);
  return std::exchange(told_, {});
}

void LogThread::run() {
  {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [this] { return is_open_ || is_stopping_.load(); });
    if (!is_open_ && !options_.runs_unopened) return;
    guarded([this] { begin(); });
    has_begun_ = true;
    begun_.notify_one();
  }
  size_t drained_bytes = 0;
  const std::function<void(std::span<const std::byte>)> consume =
      [this, &drained_bytes](std::span<const std::byte> record) {
        drained_bytes += record.size();
        guarded([&] { take(record); });
        if (failure_) skip(record);
      };
  auto sleep = kShortestSleep;
  while (true) {
    // This is read before draining: what was committed before the stop is then seen by this drain.
    const bool is_last_round = is_stopping_.load(std::memory_order_acquire);
    drained_bytes = 0;
    Told told = new_told();  // before its records are drained
    // After a failure records are released unread, so that the step's thread never waits for a log
    // that is lost.
    size_t drained = ring_.drain(consume);
    if (spill_ != nullptr && spill_->is_active()) {
      // Nothing enters the ring any more; what entered it before the first spilt record is older.
      drained += ring_.drain(consume);
      spill_->drain(consume);
    }
    for (ConstraintFailure& failure : told.failures) {
      guarded([&] { take_failure(std::move(failure)); });
    }
    for (DraftedPass& drafts : told.drafts) guarded([&] { take_drafts(std::move(drafts)); });
    if (is_last_round) break;
    guarded([this] { look_around(); });
    if (drained_bytes > 0 && drained_bytes >= options_.ring_bytes / kBusyShare) {
      sleep = kShortestSleep;
      continue;
    }
    std::unique_lock lock(mutex_);
    const bool is_woken =
        wake_.wait_for(lock, sleep, [this] { return is_ring_full_ || is_stopping_.load(); });
    is_ring_full_ = false;
    sleep =
        is_woken || drained > kBusyRecords ? kShortestSleep : std::min(2 * sleep, kLongestSleep);
  }
  guarded([this] { close(stop_reason_); });
}

}  // namespace vitrine::audit
