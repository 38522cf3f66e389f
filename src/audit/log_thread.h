// SPDX-License-Identifier: Apache-2.0
// The thread behind a log or a stream: records and events come out of a ring in the order in which
// the step's thread put them there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>

#include "policy_sink.h"

namespace vitrine::audit {

/// A log derives from this, calls start() at the end of its constructor and stop() before anything
/// that its hooks use is destroyed.
class LogThread {
 public:
  struct Options {
    std::string name;              ///< "audit log 'run.vtr'": how messages begin
    size_t ring_bytes = 0;         ///< small enough to stay in a core's cache
    bool ends_on_failure = false;  ///< the step after a failure throws; else it goes on, unrecorded
    bool goes_on_unbegun = false;  ///< open() does not throw what begin() threw
    bool runs_unopened = false;    ///< the hooks run though no engine was ever connected
  };
  LogThread(Options options, SpillFile* spill);
  virtual ~LogThread() = default;
  LogThread(const LogThread&) = delete;
  LogThread& operator=(const LogThread&) = delete;

  // ---- The step's thread ----------------------------------------------------------------------

  /// Does what AuditSink::open() has to; a log has one layout. The first call returns when begin()
  /// has returned, and throws what that threw.
  void open(const AuditLayout& layout, size_t max_record_bytes);
  /// Drains, then calls close(reason). Call it once.
  void stop(std::optional<std::string> reason);
  /// Takes what AuditSink::on_failure() is told: beside the ring, in no order with its records.
  void add_failure(const ConstraintFailure& failure);
  /// Takes what AuditSink::on_drafts() is told, in the same way.
  void add_drafts(const DraftedPass& drafts);
  /// Called before the first record is reserved.
  virtual void before_first() {}
  bool is_running() const { return thread_.joinable(); }
  bool was_opened() const { return is_open_; }
  /// Throws the error for a record that comes after the end.
  [[noreturn]] void throw_ended() const;
  /// Returns, after stop(), what went wrong; null: nothing.
  const std::exception_ptr& failure() const { return failure_; }

 protected:
  void start();

  // Called by the step's thread in the first open(), after the ring's own.
  virtual void prepare(const AuditLayout& layout, size_t max_record_bytes) = 0;

  // ---- The log's thread; what a hook throws is kept in failure(), and no other is called after it

  virtual void begin() = 0;
  /// Takes a record, or an event's frame.
  virtual void take(std::span<const std::byte> record) = 0;
  /// Called for a record that was not taken whole, because of this failure or an earlier one.
  virtual void skip(std::span<const std::byte> record) { (void)record; }
  /// Takes what on_failure() was told, behind the records that were there by then.
  virtual void take_failure(ConstraintFailure failure) = 0;
  /// Takes what on_drafts() was told, in the same way.
  virtual void take_drafts(DraftedPass drafts) = 0;
  /// Called after each look into the ring.
  virtual void look_around() {}
  /// Ends the log. No reason: the log was destroyed without finish().
  virtual void close(const std::optional<std::string>& reason) = 0;
  /// Called when a hook threw.
  virtual void fail() {}
  /// Runs `action` unless the log has failed; what it throws is kept.
  template <typename Action>
  void guarded(Action action) {
    if (failure_) return;
    try {
      return action();
    } catch (const std::bad_alloc&) {
      failure_ = std::make_exception_ptr(
          Error(ErrorKind::kOutOfMemory, options_.name + ": no memory for its buffers"));
    } catch (...) {
      failure_ = std::current_exception();
    }
    fail();
    if (options_.ends_on_failure) has_ended_.store(true, std::memory_order_release);
  }

  const Options options_;
  SlabRing ring_;
  std::atomic<bool> has_ended_{false};  ///< no record is taken any more

 private:
  void run();
  /// Failures and guesses that were told beside the ring.
  struct Told {
    std::vector<ConstraintFailure> failures;
    std::vector<DraftedPass> drafts;
  };
  template <typename Add>
  void tell(const char* what, Add&& add);
  Told new_told();

  SpillFile* const spill_;
  size_t largest_record_ = 0;
  std::exception_ptr failure_;  // the log's thread writes it before has_ended_ or has_begun_

  std::mutex mutex_;
  Told told_;
  std::condition_variable wake_, begun_;
  bool is_open_ = false, has_begun_ = false;
  bool is_ring_full_ = false;  // the step's thread waits
  std::atomic<bool> is_stopping_{false};
  std::optional<std::string> stop_reason_;
  std::thread thread_;
};

/// Hands what the engine says to a LogThread.
template <typename Log>
class LogThreadSink : public PolicySink {
 public:
  LogThreadSink(Log& log, SlabRing& ring, SpillFile& spill, VtrOptions::WhenBehind when_behind,
                const std::atomic<bool>& has_ended)
      : PolicySink(ring, spill, when_behind, has_ended), log_(log) {}
  void open(const AuditLayout& layout, size_t max_record_bytes) override {
    log_.open(layout, std::max(max_record_bytes, sizeof(EventFrame)));
  }

  void on_failure(const ConstraintFailure& failure) override { log_.add_failure(failure); }
  void on_drafts(const DraftedPass& drafts) override { log_.add_drafts(drafts); }

 private:
  void before_first() override { log_.before_first(); }
  [[noreturn]] void throw_ended() override { log_.throw_ended(); }
  Log& log_;
};

}  // namespace vitrine::audit
