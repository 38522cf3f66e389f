// SPDX-License-Identifier: Apache-2.0
// An engine's part in beginnings of sequences that outlive them, and in drafts that are kept in
// part.
#include <algorithm>

#include "engine/engine_impl.h"
#include "engine/run/audit_layout.h"

namespace vitrine {

void Engine::keep(SequenceId sequence, int64_t count) {
  const engine::Occupied occupied(impl_->occupant);
  const int64_t before = impl_->model.pool.get(sequence).length;
  impl_->runner.keep(sequence, count);
  const int64_t length = impl_->model.pool.get(sequence).length;
  if (length == before) return;
  engine::tell_sink(impl_->sink(),
                    AuditEvent{AuditEvent::Kind::kTruncated, sequence, 0, length, before});
}

PrefixId Engine::retain(SequenceId sequence, int64_t length) {
  const engine::Occupied occupied(impl_->occupant);
  const PrefixId prefix = impl_->model.pool.retain(sequence, length);
  engine::tell_fork_of_part(impl_->sink(), prefix, sequence, impl_->model.pool.get(sequence).length,
                            length);
  return prefix;
}

SequenceId Engine::attach(PrefixId prefix, int64_t length) {
  const engine::Occupied occupied(impl_->occupant);
  const SequenceId sequence = impl_->model.pool.attach(prefix, length);
  engine::tell_fork_of_part(impl_->sink(), sequence, prefix,
                            impl_->model.pool.prefix(prefix).length, length);
  return sequence;
}

void Engine::preempt(SequenceId sequence) {
  const engine::Occupied occupied(impl_->occupant);
  impl_->runner.preempt(sequence);
}

KvPrefix Engine::prefix(PrefixId prefix) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  const kv::PrefixBlocks& found = impl_->model.pool.prefix(prefix);
  const int64_t of_windows =
      std::ranges::count_if(found.window_blocks, [](int32_t b) { return b >= 0; });
  const int adapter = found.adapter < impl_->model.num_adapters() ? found.adapter : -1;
  return {found.history, adapter, std::ssize(found.blocks) + of_windows};
}

int64_t Engine::resumed_length(PrefixId prefix, int64_t length) const {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kReads);
  return impl_->model.pool.resumed_length(prefix, length);
}

void Engine::release_prefix(PrefixId prefix) {
  const engine::Occupied occupied(impl_->occupant, engine::Occupied::kWaits);
  const int64_t length = impl_->model.pool.prefix(prefix).length;
  impl_->model.pool.release_prefix(prefix);
  engine::tell_sink(impl_->sink(), AuditEvent{AuditEvent::Kind::kReleased, prefix, 0, length, 0});
}

}  // namespace vitrine
