// SPDX-License-Identifier: Apache-2.0
#include "vitrine/audit_stream.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "decode.h"
#include "head_sections.h"
#include "log_thread.h"
#include "stream_messages.h"

namespace vitrine {
namespace {

using WhenBehind = VtrOptions::WhenBehind;
using OnError = VtrOptions::OnError;

const StreamOptions& check_options(const StreamOptions& options) {
  const auto refuse = [](const char* what) {
    throw Error(ErrorKind::kInvalidArgument, std::string("audit stream: ") + what);
  };
  if (options.detail == LogDetail::kCounters) {
    refuse("level counters has no steps to send; expected standard or full");
  }
  if (options.when_behind == WhenBehind::kSpill) {
    refuse("the policy spill needs a log's folder; expected wait or drop");
  }
  audit::check_trace_id(options.trace_id, "audit stream");
  return options;
}

uint64_t unix_ns() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

struct AuditStream::Impl : audit::LogThread {
  Impl(LogHeader stream_header, Send stream_send, StreamOptions stream_options)
      : LogThread({.name = "audit stream",
                   .ring_bytes = check_options(stream_options).ring_bytes,
                   .ends_on_failure = stream_options.on_error == OnError::kFail,
                   .goes_on_unbegun = stream_options.on_error == OnError::kDegrade},
                  nullptr),
        header(std::move(stream_header)),
        options(std::move(stream_options)),
        send_message(std::move(stream_send)),
        spill("."),
        sink(*this, ring_, spill, options.when_behind, has_ended_) {
    // This is checked before there is a thread, which an exception would leave running.
    if (!send_message) {
      throw Error(ErrorKind::kInvalidArgument,
                  "an audit stream has no function that sends; expected one");
    }
    start();
  }

  void prepare(const AuditLayout& layout, size_t max_record_bytes) override {
    sink.prepare(max_record_bytes);
    for (const AuditLayout::Layer& layer : layout.layers) {
      if (options.detail == LogDetail::kFull && layer.expert_ids >= 0 && layer.router_probs < 0) {
        throw Error(ErrorKind::kUnsupported,
                    "audit stream: level full needs the routers' distributions, which this engine "
                    "does not record; load it with audit_level full");
      }
    }
    encoder.emplace(layout, options.detail);
  }

  // ---- The stream's thread --------------------------------------------------------------------

  void begin() override { send(encoder->head(header, options.trace_id, unix_ns())); }

  void take(std::span<const std::byte> record) override {
    if (const auto event = audit::event_of(record)) return take_event(*event);
    const size_t num_tokens = audit::decode_pass_into(ring_.layout(), record, pool);
    send(encoder->step(std::span(pool).first(num_tokens)));
    counts.passes += 1;
    counts.tokens += num_tokens;
    for (size_t i = 0; i < num_tokens; ++i) {
      if (!pool[i].has_prediction) continue;
      ++(pool[i].prediction.generated ? counts.generated : counts.scored);
    }
  }

  void take_event(const audit::EventFrame& frame) {
    if (frame.lost_count > 0) {
      counts.lost += static_cast<uint64_t>(frame.lost_count);
      send(encoder->lost(frame.lost_sequence, frame.lost_first, frame.lost_count));
    } else {
      counts.events += 1;
      send(encoder->event(frame.event));
    }
  }

  void take_failure(ConstraintFailure failure) override { send(encoder->failure(failure)); }
  void take_drafts(DraftedPass drafts) override { send(encoder->drafts(drafts)); }

  void skip(std::span<const std::byte> record) override {
    AuditPassHeader pass;
    std::memcpy(&pass, record.data(), sizeof pass);
    if (pass.pass != audit::kEventPass) counts.unsent += pass.num_tokens;
  }

  void fail() override {
    if (options.on_error != OnError::kDegrade || !was_opened()) return;
    try {
      std::rethrow_exception(failure());
    } catch (const std::exception& error) {
      log_message(LogLevel::kWarning,
                  std::string(error.what()) + "; the stream ends here, and the run goes on");
    } catch (...) {
      log_message(LogLevel::kWarning, "audit stream: cannot be sent; the run goes on without it");
    }
  }

  void close(const std::optional<std::string>& reason) override {
    for (const audit::EventFrame& frame : sink.pending()) take_event(frame);
    if (reason) send(encoder->end(counts, *reason, unix_ns()));
  }

  void send(audit::ByteSpan message) {
    send_message(std::as_bytes(message));
    counts.messages += 1;
    counts.bytes += message.size();
  }

  const LogHeader header;
  const StreamOptions options;
  const Send send_message;
  std::optional<audit::StreamEncoder> encoder;
  std::vector<TokenRecord> pool;
  StreamCounts counts;
  audit::SpillFile spill;  // never written: the policy is refused
  audit::LogThreadSink<Impl> sink;
};

AuditStream::AuditStream(LogHeader header, Send send, StreamOptions options)
    : impl_(std::make_unique<Impl>(std::move(header), std::move(send), std::move(options))) {}

AuditStream::~AuditStream() {
  if (impl_->is_running()) impl_->stop(std::nullopt);
}

AuditSink& AuditStream::sink() { return impl_->sink; }

void AuditStream::finish(const std::string& stop_reason) {
  if (!impl_->is_running()) impl_->throw_ended();
  impl_->stop(stop_reason);
  if (!impl_->was_opened()) {
    throw Error(ErrorKind::kInvalidArgument,
                "audit stream: no engine was ever connected to it; call set_audit_sink first");
  }
  if (impl_->failure() && impl_->options.on_error == OnError::kFail) {
    std::rethrow_exception(impl_->failure());
  }
}

const StreamCounts& AuditStream::counts() const { return impl_->counts; }

void TeeSink::open(const AuditLayout& layout, size_t max_record_bytes) {
  first_.open(layout, max_record_bytes);
  second_.open(layout, max_record_bytes);
}

std::byte* TeeSink::reserve(size_t num_bytes) {
  first_slab_ = first_.reserve(num_bytes);
  second_slab_ = second_.reserve(num_bytes);
  num_bytes_ = num_bytes;
  return second_slab_ == nullptr ? nullptr : first_slab_;
}

void TeeSink::commit() {
  std::memcpy(second_slab_, first_slab_, num_bytes_);
  first_.commit();
  second_.commit();
}

void TeeSink::on_failure(const ConstraintFailure& failure) {
  first_.on_failure(failure);
  second_.on_failure(failure);
}

void TeeSink::on_drafts(const DraftedPass& drafts) {
  first_.on_drafts(drafts);
  second_.on_drafts(drafts);
}

void TeeSink::on_event(const AuditEvent& event) {
  first_.on_event(event);
  second_.on_event(event);
}

}  // namespace vitrine
