// SPDX-License-Identifier: Apache-2.0
// The step's side of a `.vtr` log: what happens where the ring has no room.
#pragma once

#include <deque>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "spill_file.h"
#include "vitrine/audit_log.h"

namespace vitrine::audit {

/// An event stands in the ring as a record whose pass has this number.
inline constexpr uint64_t kEventPass = std::numeric_limits<uint64_t>::max();

/// What the step's thread has to say between slabs, in order with them.
struct EventFrame {
  uint64_t pass = kEventPass;
  uint64_t lost_sequence = 0;
  int64_t lost_first = 0, lost_count = 0;  // lost_count 0: `event` counts
  AuditEvent event;
};

/// Returns the event that a record of the ring is, or nothing where it is a pass's slab.
std::optional<EventFrame> event_of(std::span<const std::byte> record);

/// Hands slabs to the ring. A slab for which the ring has no room takes the policy's way, and so
/// does all that comes after it until that is done, since the account needs the order.
class PolicySink : public AuditSink {
 public:
  PolicySink(SlabRing& ring, SpillFile& spill, VtrOptions::WhenBehind when_behind,
             const std::atomic<bool>& has_ended)
      : ring_(ring), spill_(spill), when_behind_(when_behind), has_ended_(has_ended) {}
  std::byte* reserve(size_t num_bytes) override;
  void commit() override;
  void on_event(const AuditEvent& event) override;

  /// Makes room for the largest record. Call it after the ring's open().
  void prepare(size_t max_record_bytes) { scratch_.resize(max_record_bytes / 8 + 1); }
  /// Returns the events that never found room, for the log's thread, once the step's thread has
  /// made its last commit().
  const std::deque<EventFrame>& pending() const { return pending_; }

 protected:
  [[noreturn]] virtual void throw_ended() = 0;
  /// Called before the first record is reserved.
  virtual void before_first() = 0;

 private:
  bool put(const EventFrame& frame);
  bool flush_pending();
  void drop(std::span<const std::byte> record);

  SlabRing& ring_;
  SpillFile& spill_;
  const VtrOptions::WhenBehind when_behind_;
  const std::atomic<bool>& has_ended_;
  std::vector<uint64_t> scratch_;  // 8-byte aligned
  size_t reserved_bytes_ = 0;  // of a record that was reserved in scratch_; 0: it was in the ring
  bool has_begun_ = false;     // a record was reserved
  std::deque<EventFrame> pending_;
};

}  // namespace vitrine::audit
