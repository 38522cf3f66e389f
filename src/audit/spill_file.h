// SPDX-License-Identifier: Apache-2.0
// Records that the ring had no room for, in a nameless file, until the log's thread catches up.
#pragma once

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
  explicit SpillFile(std::string folder) : folder_(std::move(folder)) {}
  ~SpillFile();
  SpillFile(const SpillFile&) = delete;
  SpillFile& operator=(const SpillFile&) = delete;

  bool is_active() const { return is_active_.load(std::memory_order_acquire); }
  /// False where the file cannot be made or the disk is full.
  bool write(std::span<const std::byte> record);
  /// Hands over all records, oldest first; afterwards the file is empty and inactive. What
  /// `consume` throws is the end of the record alone.
  void drain(const std::function<void(std::span<const std::byte>)>& consume);

 private:
  const std::string folder_;
  std::mutex mutex_;  // of the offsets and of is_active_'s changes
  int descriptor_ = -1;
  uint64_t read_ = 0, written_ = 0;
  std::atomic<bool> is_active_{false};
  std::vector<std::byte> buffer_;
};

}  // namespace vitrine::audit
