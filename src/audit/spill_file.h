// SPDX-License-Identifier: Apache-2.0
// Records that the ring had no room for, in a nameless file, until the log's thread catches up.
// Each is encrypted with a key that only this process has: nothing of a log that hides its text
// stands on a disk in the clear.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

namespace vitrine::audit {

/// One thread writes, another reads. While is_active(), everything has to go through here, so that
/// the order stays.
class SpillFile {
 public:
  explicit SpillFile(std::string folder);
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  /// Makes room for records of at most so many bytes, so that write() allocates nothing.
  void prepare(size_t max_record_bytes);
  bool is_active() const { return is_active_.load(std::memory_order_acquire); }
  /// Writes a record. Returns false where the file cannot be made, the disk is full or the record
  /// is too large.
  bool write(std::span<const std::byte> record);
  /// Hands over all records, oldest first; afterwards the file is empty and inactive. Where
  /// `consume` throws, that record alone is lost.
  void drain(const std::function<void(std::span<const std::byte>)>& consume);

 private:
  const std::string folder_;
  std::mutex mutex_;  // guards the offsets and changes of is_active_
  int descriptor_ = -1;
  uint64_t read_ = 0, written_ = 0;
  std::atomic<bool> is_active_{false};
  std::array<unsigned char, 32> key_{};
  uint64_t num_written_ = 0;               // records since the beginning, which are the nonces
  std::vector<std::byte> sealed_;          // the writer's alone
  std::vector<std::byte> buffer_, plain_;  // the reader's alone
};

}  // namespace vitrine::audit
