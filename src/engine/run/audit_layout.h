// SPDX-License-Identifier: Apache-2.0
// Where each audit value of a model's passes lies.
#pragma once

#include <cstddef>
#include <string>

#include "ops/graph.h"
#include "vitrine/core.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

AuditLayout make_audit_layout(const ops::Graph& graph, AuditMode mode, AuditLevel level,
                              bool record_rows, bool expert_norms = false);

/// Returns the bytes of the largest record that a step may make.
size_t largest_record(const AuditLayout& layout, const EngineOptions& options);

/// Completes a step's record. Where the sink throws, `blamed` becomes the sequence that it could
/// not keep the record of (AuditSink::failed_sequence).
void commit_record(AuditSink& sink, std::byte* record, uint64_t step_ns, uint64_t& blamed);

/// Tell a sink, where it is not null, what happened to a sequence, to an attempt at an answer or to
/// guesses. A sink that throws must not keep a sequence from being given back, so that becomes a
/// warning.
void tell_sink(AuditSink* sink, const AuditEvent& event);
void tell_sink(AuditSink* sink, const ConstraintFailure& failure);
void tell_sink(AuditSink* sink, const DraftedPass& drafts);
/// Tells of a sequence or prefix that begins with `length` of its source's `whole` positions: a
/// fork has all of them, and then it is cut.
void tell_fork_of_part(AuditSink* sink, uint64_t sequence, uint64_t source, int64_t whole,
                       int64_t length);

/// Writes a token that the host chose, in place of the head's, into the words of a pass of `rows`
/// rows; its logit too where `records` says that the row's record is among them.
void write_choice(const AuditLayout& layout, size_t rows, size_t row, int32_t token, float logit,
                  bool records, std::byte* words);

/// Returns, for an error about logits that are no numbers, the first layer that a token's residual
/// stream entered with a norm that is not finite. It stands in the words of the token's pass (null:
/// nothing was recorded). Empty where there is none.
std::string broken_layer(const AuditLayout& layout, size_t token, size_t rows,
                         const std::byte* words);

}  // namespace vitrine::engine
