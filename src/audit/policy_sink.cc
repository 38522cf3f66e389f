// SPDX-License-Identifier: Apache-2.0
#include "policy_sink.h"

#include <cstring>

namespace vitrine::audit {

using WhenBehind = VtrOptions::WhenBehind;

std::optional<EventFrame> event_of(std::span<const std::byte> record) {
  uint64_t pass;
  std::memcpy(&pass, record.data(), sizeof pass);
  if (pass != kEventPass || record.size() != sizeof(EventFrame)) return {};
  EventFrame frame;
  std::memcpy(static_cast<void*>(&frame), record.data(), sizeof frame);
  return frame;
}

std::byte* PolicySink::reserve(size_t num_bytes) {
  if (has_ended_.load(std::memory_order_acquire)) [[unlikely]]
    throw_ended();
  if (!has_begun_) [[unlikely]]
    before_first();
  has_begun_ = true;
  reserved_bytes_ = 0;
  if (when_behind_ == WhenBehind::kWait) return ring_.SlabRing::reserve(num_bytes);
  std::byte* slab = nullptr;
  if (flush_pending() && !spill_.is_active()) slab = ring_.try_reserve(num_bytes);
  if (slab != nullptr) return slab;
  if (num_bytes > 8 * scratch_.size()) return ring_.SlabRing::reserve(num_bytes);  // throws
  reserved_bytes_ = num_bytes;
  return reinterpret_cast<std::byte*>(scratch_.data());
}

void PolicySink::commit() {
  if (reserved_bytes_ == 0) return ring_.SlabRing::commit();
  const std::span record(reinterpret_cast<const std::byte*>(scratch_.data()), reserved_bytes_);
  reserved_bytes_ = 0;
  if (when_behind_ == WhenBehind::kSpill && pending_.empty() && spill_.write(record)) return;
  drop(record);
}

void PolicySink::on_event(const AuditEvent& event) {
  if (scratch_.empty() || has_ended_.load(std::memory_order_acquire)) return;
  EventFrame frame;
  frame.event = event;
  if (when_behind_ == WhenBehind::kWait) {
    std::memcpy(ring_.SlabRing::reserve(sizeof frame), &frame, sizeof frame);
    ring_.SlabRing::commit();
  } else if (!flush_pending() || !put(frame)) {
    pending_.push_back(frame);
  }
}

bool PolicySink::put(const EventFrame& frame) {
  const auto bytes = std::as_bytes(std::span(&frame, 1));
  if (spill_.is_active()) return spill_.write(bytes);
  std::byte* slab = ring_.try_reserve(sizeof frame);
  if (slab == nullptr) return when_behind_ == WhenBehind::kSpill && spill_.write(bytes);
  std::memcpy(slab, &frame, sizeof frame);
  ring_.SlabRing::commit();
  return true;
}

// Returns true where nothing waits any more.
bool PolicySink::flush_pending() {
  while (!pending_.empty() && put(pending_.front())) pending_.pop_front();
  return pending_.empty();
}

void PolicySink::drop(std::span<const std::byte> record) {
  AuditPassHeader header;
  std::memcpy(&header, record.data(), sizeof header);
  for (uint32_t i = 0; i < header.num_tokens; ++i) {
    AuditToken token;
    std::memcpy(&token, record.data() + sizeof header + i * sizeof token, sizeof token);
    EventFrame* last = pending_.empty() ? nullptr : &pending_.back();
    if (last != nullptr && last->lost_count > 0 && last->lost_sequence == token.sequence &&
        last->lost_first + last->lost_count == token.position) {
      ++last->lost_count;
    } else {
      pending_.push_back({kEventPass, token.sequence, token.position, 1, {}});
    }
  }
}

}  // namespace vitrine::audit
