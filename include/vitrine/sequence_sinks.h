// SPDX-License-Identifier: Apache-2.0
// The room `audit`: records of single sequences, each in a sink of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "vitrine/audit_sink.h"

namespace vitrine {

/// Parts the records of steps that several sequences share: what is of a sequence with a sink of
/// its own goes there, as if it had stepped alone (the pass's number and time are the step's), the
/// rest to another sink or nowhere. A sink that has no room for its part fails its sequence's
/// input, and the step is made without that (Stepper::step); the others' sink fails the step. Then
/// no other one keeps a part of it. For hosts that serve many and owe each one account.
///
///     SequenceSinks sinks(&everybody_else);
///     engine->set_audit_sink(&sinks);
///     sinks.add(sequence, log_of_this_answer);
///
/// One thread at a time, the steps' thread included.
class VITRINE_API SequenceSinks final : public AuditSink {
 public:
  /// `others`: what gets the rest (not owned; null: nobody).
  explicit SequenceSinks(AuditSink* others = nullptr);
  ~SequenceSinks() override;
  SequenceSinks(const SequenceSinks&) = delete;
  SequenceSinks& operator=(const SequenceSinks&) = delete;

  /// Of a sequence that has just been created, before its first step: opens the sink (not owned)
  /// once the layout is known, and tells it of the creation. Throws kInvalidArgument for a sequence
  /// that has one, and what its open() throws.
  void add(uint64_t sequence, AuditSink& sink);
  /// The sequence's records go to the others again. A sequence without one is let pass.
  void remove(uint64_t sequence);

  void open(const AuditLayout& layout, size_t max_record_bytes) override;
  std::byte* reserve(size_t num_bytes) override;
  void commit() override;
  /// The sequence of the sink that had no room last; 0: it was the others' sink.
  uint64_t failed_sequence() const override;
  void on_event(const AuditEvent& event) override;
  void on_failure(const ConstraintFailure& failure) override;
  void on_drafts(const DraftedPass& drafts) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vitrine
