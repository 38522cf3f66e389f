// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <thread>

#include "decode.h"
#include "vitrine/audit.h"

namespace vitrine {
namespace {

// A frame is its record's size (8 bytes), then the record, rounded up to 8. kSkip in place of a
// size: the next frame is at the ring's start.
constexpr size_t kFrameHeader = 8;
constexpr uint64_t kSkip = std::numeric_limits<uint64_t>::max();
constexpr size_t kMaxBytes = size_t{1} << 46;  // beyond any address space; keeps sums in range

size_t round_up(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

}  // namespace

struct SlabRing::Impl {
  // The members below are set in open().
  size_t requested_capacity = 0;
  WhenFull when_full = WhenFull::kWait;
  AuditLayout layout;
  size_t max_record_bytes = 0;
  size_t capacity = 0;
  std::unique_ptr<std::byte[]> data;
  std::function<void()> full_callback;

  // The members below are the step's thread's. Positions count bytes since open(), skipped ones
  // included.
  alignas(64) uint64_t write_position = 0;
  size_t write_offset = 0;      // write_position in the ring
  uint64_t reserved_end = 0;    // write_position after commit()
  size_t reserved_offset = 0;   // write_offset after commit()
  uint64_t known_released = 0;  // `released` as last read
  bool is_reserved = false;
  std::atomic<uint64_t> num_overwritten{0};

  // The reader's own (for kOverwrite the step's thread's too, between drains).
  alignas(64) size_t read_offset = 0;

  // Both threads share these, each on a cache line of its own.
  alignas(64) std::atomic<uint64_t> committed{0};  // written by the step's thread
  alignas(64) std::atomic<uint64_t> released{0};   // written by the reader

  uint64_t size_at(size_t offset) const {
    uint64_t size;
    std::memcpy(&size, data.get() + offset, sizeof size);
    return size;
  }
  void set_size_at(size_t offset, uint64_t size) {
    std::memcpy(data.get() + offset, &size, sizeof size);
  }

  /// The oldest record where `position` is before `end`, with the position and the offset after it;
  /// skips the gap at the ring's end.
  std::span<const std::byte> frame_at(uint64_t& position, size_t& offset) const {
    uint64_t size = size_at(offset);
    if (size == kSkip) {
      position += capacity - offset;
      offset = 0;
      size = size_at(0);
    }
    const std::span<const std::byte> record(data.get() + offset + kFrameHeader, size);
    const size_t frame = kFrameHeader + round_up(size);
    position += frame;
    offset += frame;
    if (offset == capacity) offset = 0;
    return record;
  }

  void forget_oldest() {
    uint64_t position = released.load(std::memory_order_relaxed);
    frame_at(position, read_offset);
    released.store(position, std::memory_order_release);
    known_released = position;
    num_overwritten.fetch_add(1, std::memory_order_relaxed);
  }

  /// Makes room until `end` bytes fit beside what is unread.
  void make_room(uint64_t end) {
    known_released = released.load(std::memory_order_acquire);
    if (when_full == WhenFull::kOverwrite) {
      while (end - known_released > capacity) forget_oldest();
      return;
    }
    if (full_callback && end - known_released > capacity) full_callback();
    for (int attempt = 0; end - known_released > capacity; ++attempt) {
      if (attempt < 16) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      known_released = released.load(std::memory_order_acquire);
    }
  }

  std::byte* reserve(size_t num_bytes, bool may_wait) {
    if (!data || num_bytes > max_record_bytes) [[unlikely]] {
      throw Error(ErrorKind::kInvalidArgument,
                  data ? "audit ring: a record of " + std::to_string(num_bytes) +
                             " bytes, expected at most the " + std::to_string(max_record_bytes) +
                             " given to open()"
                       : std::string("audit ring: reserve() before open(); call open() first"));
    }
    const size_t frame = kFrameHeader + round_up(num_bytes);
    const size_t left = capacity - write_offset;
    const bool wraps = frame > left;
    const uint64_t end = write_position + frame + (wraps ? left : 0);
    if (end - known_released > capacity) {
      if (!may_wait) {
        known_released = released.load(std::memory_order_acquire);
        if (end - known_released > capacity) return nullptr;
      }
      make_room(end);
    }
    if (wraps) set_size_at(write_offset, kSkip);
    const size_t offset = wraps ? 0 : write_offset;
    set_size_at(offset, num_bytes);
    reserved_end = end;
    reserved_offset = offset + frame == capacity ? 0 : offset + frame;
    is_reserved = true;
    return data.get() + offset + kFrameHeader;
  }

  uint64_t count_unread() {
    uint64_t count = 0;
    size_t offset = read_offset;
    const uint64_t end = committed.load(std::memory_order_acquire);
    for (uint64_t position = released.load(std::memory_order_relaxed); position < end; ++count) {
      frame_at(position, offset);
    }
    return count;
  }
};

SlabRing::SlabRing(size_t capacity_bytes, WhenFull when_full) : impl_(std::make_unique<Impl>()) {
  impl_->requested_capacity = capacity_bytes;
  impl_->when_full = when_full;
}

SlabRing::~SlabRing() = default;

void SlabRing::open(const AuditLayout& layout, size_t max_record_bytes) {
  Impl& ring = *impl_;
  if (ring.data && max_record_bytes <= ring.max_record_bytes &&
      audit::same_layout(layout, ring.layout)) {
    return;
  }
  audit::check_layout(layout);
  if (max_record_bytes > kMaxBytes || ring.requested_capacity > kMaxBytes) {
    throw Error(
        ErrorKind::kOutOfMemory,
        "audit ring: " + std::to_string(std::max(max_record_bytes, ring.requested_capacity)) +
            " bytes cannot be allocated; choose a smaller ring or smaller steps");
  }
  // Two frames always fit, whatever gap is left at the end: the gap is smaller than a frame.
  const size_t capacity =
      std::max(round_up(ring.requested_capacity), 2 * (kFrameHeader + round_up(max_record_bytes)));
  if (ring.data) {
    ring.num_overwritten.fetch_add(ring.count_unread(), std::memory_order_relaxed);
  }
  if (capacity != ring.capacity) {
    std::unique_ptr<std::byte[]> data(new (std::nothrow) std::byte[capacity]);
    if (!data) {
      throw Error(ErrorKind::kOutOfMemory, "audit ring: " + std::to_string(capacity) +
                                               " bytes cannot be allocated; choose a smaller ring "
                                               "or smaller steps");
    }
    std::memset(data.get(), 0, capacity);  // page faults happen here and not in a step
    ring.data = std::move(data);
    ring.capacity = capacity;
  }
  ring.layout = layout;
  ring.max_record_bytes = max_record_bytes;
  ring.write_position = ring.reserved_end = ring.known_released = 0;
  ring.write_offset = ring.reserved_offset = ring.read_offset = 0;
  ring.is_reserved = false;
  ring.released.store(0, std::memory_order_release);
  ring.committed.store(0, std::memory_order_release);
}

std::byte* SlabRing::reserve(size_t num_bytes) { return impl_->reserve(num_bytes, true); }
std::byte* SlabRing::try_reserve(size_t num_bytes) { return impl_->reserve(num_bytes, false); }

void SlabRing::commit() {
  Impl& ring = *impl_;
  if (!ring.is_reserved) [[unlikely]] {
    throw Error(ErrorKind::kInvalidArgument,
                "audit ring: commit() without a reserved record; call reserve() first");
  }
  ring.is_reserved = false;
  ring.write_position = ring.reserved_end;
  ring.write_offset = ring.reserved_offset;
  ring.committed.store(ring.write_position, std::memory_order_release);
}

void SlabRing::on_full(std::function<void()> callback) {
  impl_->full_callback = std::move(callback);
}

size_t SlabRing::drain(const std::function<void(std::span<const std::byte>)>& consume) {
  if (!consume) {
    throw Error(ErrorKind::kInvalidArgument,
                "a ring is drained into no callback; expected one that takes records");
  }
  Impl& ring = *impl_;
  /// Releases the record also where `consume` throws.
  struct Release {
    Impl& ring;
    uint64_t position;
    ~Release() { ring.released.store(position, std::memory_order_release); }
  };
  const uint64_t end = ring.committed.load(std::memory_order_acquire);
  uint64_t position = ring.released.load(std::memory_order_relaxed);
  size_t count = 0;
  for (; position < end; ++count) {
    const std::span<const std::byte> record = ring.frame_at(position, ring.read_offset);
    Release release{ring, position};
    consume(record);
  }
  return count;
}

std::vector<TokenRecord> SlabRing::drain_records() {
  std::vector<TokenRecord> records;
  drain([&](std::span<const std::byte> record) {
    for (TokenRecord& token : decode_pass(impl_->layout, record)) {
      records.push_back(std::move(token));
    }
  });
  return records;
}

const AuditLayout& SlabRing::layout() const { return impl_->layout; }

uint64_t SlabRing::overwritten() const {
  return impl_->num_overwritten.load(std::memory_order_relaxed);
}

}  // namespace vitrine
