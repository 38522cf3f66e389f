// SPDX-License-Identifier: Apache-2.0
// A run as a stream of small messages, for the network: one message a step, each behind its length,
// in Protocol Buffers (docs/audit-stream.md, docs/audit_stream.proto).
//
//     const auto send = [&](std::span<const std::byte> message) { socket.write(message); };
//     AuditStream stream(header, send);
//     engine->set_audit_sink(&stream.sink());
//     …
//     engine->set_audit_sink(nullptr);
//     stream.finish("length");
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "vitrine/audit_log.h"

namespace vitrine {

/// How a run is streamed.
struct StreamOptions {
  LogDetail detail = LogDetail::kStandard;  ///< kStandard: 16 bits a value; kFull: 32 bits, and the
                                            ///< routers' distributions
  /// kWait: the next step waits. kDrop: the pass is not sent, and its positions are counted as
  /// lost.
  VtrOptions::WhenBehind when_behind = VtrOptions::WhenBehind::kWait;
  /// What a failure of sending does: the next step and finish() throw; or the run goes on, nothing
  /// more is sent, and what is missing is counted.
  VtrOptions::OnError on_error = VtrOptions::OnError::kFail;
  size_t ring_bytes = size_t{1} << 20;  ///< of the ring between the step's thread and the stream's
  /// The host's OpenTelemetry trace, carried in the head: 32 hexadecimal digits, or empty.
  std::string trace_id = {};
};

/// What a stream has sent.
struct StreamCounts {
  uint64_t messages = 0;   ///< handed over
  uint64_t bytes = 0;      ///< bytes that were handed over, lengths included
  uint64_t passes = 0;     ///< sent
  uint64_t tokens = 0;     ///< records in them
  uint64_t generated = 0;  ///< records that chose a token
  uint64_t scored = 0;     ///< records that score the prompt
  uint64_t events = 0;     ///< events of sequences that were sent
  uint64_t lost = 0;       ///< positions that were dropped because the receiver was too slow
  uint64_t unsent = 0;     ///< records that came after sending had failed
};

/// Turns what the engine records into messages, on a thread of its own.
class VITRINE_API AuditStream {
 public:
  /// Takes one whole message (its length before it), called from the stream's thread, in which
  /// every signal is blocked: a closed pipe is an error of write(), no signal. What it throws is
  /// a failure of sending.
  using Send = std::function<void(std::span<const std::byte>)>;

  /// Throws kInvalidArgument for options out of range: level counters, the policy spill.
  AuditStream(LogHeader header, Send send, StreamOptions options = {});
  /// Without finish() the stream has no end message.
  ~AuditStream();
  /// The sink for Engine::set_audit_sink; take it away from there before the stream ends. Its
  /// open() sends the head. A stream has one layout: open() throws kInvalidArgument for a second
  /// one, kUnsupported where `detail` is full and the layout has no router probabilities though it
  /// has experts, and what sending the head threw.
  AuditSink& sink();
  /// Drains and sends the end message. Call it once, after the last commit(). With kFail it throws
  /// what went wrong.
  void finish(const std::string& stop_reason);
  /// Returns, after finish(), what was sent.
  const StreamCounts& counts() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Gives two sinks every record and every event: a log and a stream, say. Both must outlive it.
class VITRINE_API TeeSink : public AuditSink {
 public:
  /// Owns neither sink.
  TeeSink(AuditSink& first, AuditSink& second) : first_(first), second_(second) {}
  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  std::byte* reserve(size_t num_bytes) override;
  void commit() override;
  void on_event(const AuditEvent& event) override;
  void on_failure(const ConstraintFailure& failure) override;
  void on_drafts(const DraftedPass& drafts) override;

 private:
  AuditSink &first_, &second_;
  std::byte *first_slab_ = nullptr, *second_slab_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace vitrine
