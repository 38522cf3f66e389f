#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>

#include "blocked_signals.h"
#include "decode.h"
#include "json_schema.h"
#include "log_file.h"
#include "vitrine/audit.h"

namespace vitrine {
namespace {

constexpr size_t kRingBytes = size_t{1} << 20;  // small enough to stay in a core's cache
constexpr size_t kFlushBytes = size_t{1} << 18;
// A wake-up costs the cores that generate more than a token's JSON does (16 us measured on a
// virtual machine), so the thread sleeps longer while the ring stays nearly empty.
constexpr auto kShortestSleep = std::chrono::milliseconds(1);
constexpr auto kLongestSleep = std::chrono::milliseconds(16);
constexpr size_t kBusyBytes = kRingBytes / 8;  // in one drain: the next follows at once

/// The path, where its extension is one that a log can be written for.
const std::string& check_extension(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension != ".json") {
    throw Error(ErrorKind::kUnsupported,
                "audit log '" + path +
                    "': " + (extension.empty() ? "no extension" : "extension '" + extension + "'") +
                    ", expected .json");
  }
  return path;
}

}  // namespace

struct JsonLog::Impl {
  /// Hands everything to the ring, whose reader is the log's thread, for as long as that runs.
  class Sink : public AuditSink {
   public:
    explicit Sink(Impl& log) : log_(log) {}
    void open(const AuditLayout& layout, size_t max_record_bytes) override {
      log_.open(layout, max_record_bytes);
    }
    std::byte* reserve(size_t num_bytes) override {
      if (log_.is_stopping.load(std::memory_order_relaxed)) [[unlikely]]
        log_.throw_finished();
      return log_.ring.SlabRing::reserve(num_bytes);
    }
    void commit() override { log_.ring.SlabRing::commit(); }

   private:
    Impl& log_;
  };

  Impl(const std::string& log_path, LogHeader log_header,
       std::function<std::string(int32_t)> token_text)
      : path(check_extension(log_path)),
        header(std::move(log_header)),
        pieces(std::move(token_text)),
        file(log_path),
        buffer(2 * kFlushBytes) {
    ring.on_full([this] {
      const std::lock_guard lock(mutex);
      is_ring_full = true;
      wake.notify_one();
    });
    const audit::BlockedSignals blocked;
    try {
      thread = std::thread([this] { run(); });
    } catch (const std::system_error& error) {
      throw Error(ErrorKind::kIo, "audit log '" + path + "': its thread cannot be started: " +
                                      error.code().message() + "; allow more threads");
    }
  }

  [[noreturn]] void throw_finished() const {
    throw Error(ErrorKind::kInvalidArgument,
                "audit log '" + path + "': is finished; give the engine another sink");
  }

  void open(const AuditLayout& layout, size_t max_record_bytes) {
    if (is_stopping.load(std::memory_order_relaxed)) throw_finished();
    if (is_open) {
      // The ring's reader is at work, so it can be neither laid out again nor enlarged.
      if (!audit::same_layout(layout, ring.layout()) || max_record_bytes > largest_record) {
        throw Error(ErrorKind::kInvalidArgument,
                    "audit log '" + path +
                        "': a second audit layout, expected one a log; finish this log and start "
                        "another");
      }
      return;
    }
    ring.open(layout, max_record_bytes);
    largest_record = max_record_bytes;
    const std::lock_guard lock(mutex);
    is_open = true;
    wake.notify_one();
  }

  /// Ends the thread: with the closing part, or (no reason) without.
  void stop(std::optional<std::string> reason) {
    {
      const std::lock_guard lock(mutex);
      stop_reason = std::move(reason);
      is_stopping.store(true);
      wake.notify_one();
    }
    thread.join();
  }

  // ---- The log's thread -----------------------------------------------------------------------

  void run() {
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [this] { return is_open || is_stopping.load(); });
    }
    guarded([this] { audit::append_head(buffer, header, ring.layout()); });
    size_t drained_bytes = 0;
    const std::function<void(std::span<const std::byte>)> consume =
        [this, &drained_bytes](std::span<const std::byte> record) {
          drained_bytes += record.size();
          guarded([&] { write_pass(record); });
        };
    auto sleep = kShortestSleep;
    while (true) {
      // Read before draining: what was committed before the stop is then seen by this drain.
      const bool is_last_round = is_stopping.load(std::memory_order_acquire);
      drained_bytes = 0;
      // After a failure records are released unread, so that the step's thread never waits for a
      // log that is lost. Before open() the ring is empty.
      ring.drain(consume);
      if (is_last_round) break;
      if (drained_bytes >= kBusyBytes) {
        sleep = kShortestSleep;
        continue;
      }
      std::unique_lock lock(mutex);
      const bool is_woken =
          wake.wait_for(lock, sleep, [this] { return is_ring_full || is_stopping.load(); });
      is_ring_full = false;
      sleep = is_woken ? kShortestSleep : std::min(2 * sleep, kLongestSleep);
    }
    if (!stop_reason) return;
    guarded([this] {
      audit::append_closing(buffer, *stop_reason, counts);
      file.write(buffer.view());
      file.sync_and_close();
    });
  }

  void write_pass(std::span<const std::byte> record) {
    const size_t num_tokens = audit::decode_pass_into(ring.layout(), record, pool);
    for (size_t i = 0; i < num_tokens; ++i) {
      const TokenRecord& token = pool[i];
      audit::append_record(buffer, token, pieces, counts.tokens == 0);
      counts.tokens += 1;
      if (token.has_prediction)
        (token.prediction.generated ? counts.generated : counts.scored) += 1;
      if (buffer.size() >= kFlushBytes) {
        file.write(buffer.view());
        buffer.clear();
      }
      if (callback) callback(token);
    }
    counts.passes += 1;
  }

  /// Runs `action` unless the log has failed; what it throws is kept for finish().
  template <typename Action>
  void guarded(Action action) {
    if (failure) return;
    try {
      action();
    } catch (const std::bad_alloc&) {
      failure = std::make_exception_ptr(
          Error(ErrorKind::kOutOfMemory, "audit log '" + path + "': no memory for its buffer"));
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure) file.discard();
  }

  const std::string path;
  const LogHeader header;
  audit::PieceCache pieces;
  audit::LogFile file;
  audit::JsonBuffer buffer;
  audit::LogCounts counts;
  std::vector<TokenRecord> pool;
  std::function<void(const TokenRecord&)> callback;
  std::exception_ptr failure;
  SlabRing ring{kRingBytes, SlabRing::WhenFull::kWait};
  Sink sink{*this};
  size_t largest_record = 0;

  std::mutex mutex;
  std::condition_variable wake;
  bool is_open = false;
  bool is_ring_full = false;  // the step's thread waits
  std::atomic<bool> is_stopping{false};
  std::optional<std::string> stop_reason;
  std::thread thread;
};

JsonLog::JsonLog(const std::string& path, LogHeader header,
                 std::function<std::string(int32_t)> token_text)
    : impl_(std::make_unique<Impl>(path, std::move(header), std::move(token_text))) {}

JsonLog::~JsonLog() {
  if (impl_->thread.joinable()) impl_->stop(std::nullopt);
}

AuditSink& JsonLog::sink() { return impl_->sink; }

void JsonLog::on_record(std::function<void(const TokenRecord&)> callback) {
  impl_->callback = std::move(callback);
}

void JsonLog::finish(const std::string& stop_reason) {
  if (!impl_->thread.joinable()) impl_->throw_finished();
  impl_->stop(stop_reason);
  if (impl_->failure) std::rethrow_exception(impl_->failure);
  impl_->file.publish();
}

}  // namespace vitrine
