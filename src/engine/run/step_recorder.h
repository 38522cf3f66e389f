// SPDX-License-Identifier: Apache-2.0
// The record of each pass: where its words go, and the sink that it goes to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/run/step_clock.h"
#include "engine/run/step_rows.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Not thread-safe.
class StepRecorder {
 public:
  /// Both must stay. The layout's mode may change between steps.
  StepRecorder(const AuditLayout& layout, const EngineOptions& options)
      : layout_(layout), options_(options) {}
  /// Makes room for records of steps whose drafts are a tree.
  void reserve_trees();

  /// Throws what Stepper::set_audit_sink() throws.
  void set_sink(AuditSink* sink);
  AuditSink* sink() const { return sink_; }
  /// Returns whether somebody listens to the pass.
  bool records() const {
    return sink_ != nullptr && !is_paused_ && layout_.mode != AuditMode::kNone;
  }
  /// Until it is called again with false, passes are neither recorded nor counted.
  void pause(bool is_paused) { is_paused_ = is_paused; }

  /// Writes the head of the record and what it says of tokens. Returns where the pass's words go.
  /// With `has_tree` they stay here until keep() says which drafts were chosen.
  std::byte* begin(const StepRows& rows, bool has_tree);
  /// Takes out a row that nobody looked at.
  void drop_row(const StepRows& rows, size_t row);
  /// Gives the sink the tokens that stay, `kept` saying so of each, and the rows that stand behind
  /// `row_tokens`.
  void keep(std::span<const uint8_t> kept, std::span<const int32_t> row_tokens);
  /// The pass is over. Where the sink cannot keep the record, `blamed` becomes the sequence at
  /// fault.
  void end(SequenceId& blamed);

 private:
  bool has_record() const { return records() && record_ != nullptr; }

  const AuditLayout& layout_;
  const EngineOptions& options_;
  AuditSink* sink_ = nullptr;
  bool is_paused_ = false;
  uint64_t passes_ = 0;
  StepClock clock_;
  std::byte* record_ = nullptr;               // of the step under way
  std::unique_ptr<std::byte[]> tree_record_;  // of a step with trees, before drafts are chosen
};

}  // namespace vitrine::engine
