// SPDX-License-Identifier: Apache-2.0
#include "engine/run/step_recorder.h"

#include <cstring>

#include "audit/pass_record.h"
#include "engine/run/audit_layout.h"

namespace vitrine::engine {

void StepRecorder::reserve_trees() {
  tree_record_ = std::make_unique_for_overwrite<std::byte[]>(largest_record(layout_, options_));
}

void StepRecorder::set_sink(AuditSink* sink) {
  if (sink != nullptr && options_.hidden_states_only) {
    throw Error(ErrorKind::kUnsupported,
                "the engine was loaded for hidden states alone (engine option "
                "'hidden_states_only'), whose steps are no passes that could be recorded; expected "
                "no audit sink, or an engine without that option");
  }
  if (sink != nullptr) sink->open(layout_, largest_record(layout_, options_));
  sink_ = sink;  // where it does not refuse
  record_ = nullptr;
  clock_.calibrate();
}

std::byte* StepRecorder::begin(const StepRows& rows, bool has_tree) {
  const std::span<const AuditToken> tokens = rows.audit_tokens();
  const AuditPassHeader header = audit::record_header(layout_, passes_, tokens.size(), rows.size());
  if (has_tree) {
    record_ = tree_record_.get();
    std::memcpy(record_, &header, sizeof(header));
  } else {
    record_ = audit::begin_record(*sink_, header);
  }
  clock_.begin();  // waiting for a slow sink is no work
  std::memcpy(record_ + sizeof(header), tokens.data(), tokens.size_bytes());
  return record_ + sizeof(header) + tokens.size_bytes();
}

void StepRecorder::drop_row(const StepRows& rows, size_t row) {
  if (has_record()) rows.drop_row(row, record_ + sizeof(AuditPassHeader));
}

void StepRecorder::keep(std::span<const uint8_t> kept, std::span<const int32_t> row_tokens) {
  if (has_record()) record_ = audit::write_kept(*sink_, layout_, {kept, row_tokens}, record_);
}

void StepRecorder::end(SequenceId& blamed) {
  if (is_paused_) return;
  if (has_record()) commit_record(*sink_, record_, clock_.nanoseconds(), blamed);
  ++passes_;
}

}  // namespace vitrine::engine
