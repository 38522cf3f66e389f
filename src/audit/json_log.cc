// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>

#include "decode.h"
#include "json_schema.h"
#include "log_file.h"
#include "log_thread.h"
#include "start_time.h"
#include "vitrine/audit.h"

namespace vitrine {
namespace {

constexpr size_t kRingBytes = size_t{1} << 20;  // small enough to stay in a core's cache
constexpr size_t kFlushBytes = size_t{1} << 18;

/// Returns the path, where its extension is one that a log can be written for.
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

struct JsonLog::Impl : audit::LogThread {
  /// Hands every record to the ring, and those events that are forks: the others show in the
  /// records.
  class Sink : public AuditSink {
   public:
    explicit Sink(Impl& log) : log_(log) {}
    void open(const AuditLayout& layout, size_t max_record_bytes) override {
      log_.open(layout, std::max(max_record_bytes, sizeof(audit::EventFrame)));
    }
    std::byte* reserve(size_t num_bytes) override {
      if (log_.has_ended_.load(std::memory_order_relaxed)) [[unlikely]]
        log_.throw_ended();
      return log_.ring_.SlabRing::reserve(num_bytes);
    }
    void commit() override { log_.ring_.SlabRing::commit(); }
    void on_event(const AuditEvent& event) override {
      const bool is_taken = log_.was_opened() && !log_.has_ended_.load(std::memory_order_relaxed);
      if (event.kind != AuditEvent::Kind::kForked || !is_taken) return;
      audit::EventFrame frame;
      frame.event = event;
      std::memcpy(log_.ring_.SlabRing::reserve(sizeof frame), &frame, sizeof frame);
      log_.ring_.SlabRing::commit();
    }
    void on_failure(const ConstraintFailure& failure) override { log_.add_failure(failure); }
    void on_drafts(const DraftedPass& drafts) override { log_.add_drafts(drafts); }

   private:
    Impl& log_;
  };

  Impl(const std::string& log_path, LogHeader log_header,
       std::function<TokenPiece(int32_t)> token_text, bool overwrite)
      : LogThread({.name = "audit log '" + check_extension(log_path) + "'",
                   .ring_bytes = kRingBytes,
                   .runs_unopened = true},
                  nullptr),
        header(std::move(log_header)),
        pieces(std::move(token_text)),
        file(log_path, overwrite),
        buffer(2 * kFlushBytes) {
    start();
  }

  void prepare(const AuditLayout&, size_t) override {}

  // ---- The log's thread -----------------------------------------------------------------------

  void begin() override {
    audit::append_head(buffer, header, audit::start_now(), ring_.layout(), "", false);
  }

  void close(const std::optional<std::string>& reason) override {
    if (!reason) return;
    audit::append_closing(buffer, *reason, counts, failures, drafts, forks);
    file.write(buffer.view());
    file.sync_and_close();
  }

  void fail() override { file.discard(); }

  void take_failure(ConstraintFailure failure) override { failures.push_back(std::move(failure)); }
  void take_drafts(DraftedPass pass) override { drafts.push_back(std::move(pass)); }

  void take(std::span<const std::byte> record) override {
    if (const auto event = audit::event_of(record)) {
      const AuditEvent& fork = event->event;
      forks.push_back({counts.tokens, fork.sequence, fork.source, fork.length});
      return;
    }
    const size_t num_tokens = audit::decode_pass_into(ring_.layout(), record, pool);
    for (size_t i = 0; i < num_tokens; ++i) {
      const TokenRecord& token = pool[i];
      audit::append_record(buffer, token, pieces, counts.tokens == 0, false);
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

  const LogHeader header;
  audit::PieceCache pieces;
  audit::LogFile file;
  audit::JsonBuffer buffer;
  audit::LogCounts counts;
  std::vector<ConstraintFailure> failures;
  std::vector<DraftedPass> drafts;
  std::vector<audit::LogFork> forks;
  std::vector<TokenRecord> pool;
  std::function<void(const TokenRecord&)> callback;
  Sink sink{*this};
};

JsonLog::JsonLog(const std::string& path, LogHeader header,
                 std::function<TokenPiece(int32_t)> token_text, bool overwrite)
    : impl_(std::make_unique<Impl>(path, std::move(header), std::move(token_text), overwrite)) {}

JsonLog::~JsonLog() {
  if (impl_->is_running()) impl_->stop(std::nullopt);
}

AuditSink& JsonLog::sink() { return impl_->sink; }

void JsonLog::on_record(std::function<void(const TokenRecord&)> callback) {
  impl_->callback = std::move(callback);
}

void JsonLog::finish(const std::string& stop_reason) {
  if (!impl_->is_running()) impl_->throw_ended();
  impl_->stop(stop_reason);
  if (impl_->failure()) std::rethrow_exception(impl_->failure());
  impl_->file.publish();
}

}  // namespace vitrine
