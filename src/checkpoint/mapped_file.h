// SPDX-License-Identifier: Apache-2.0
// Private to the room: a file's bytes in memory, and who is told when the file shrinks under them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace vitrine::checkpoint {

/// The first `size` bytes of an open file, mapped for reading.
class MappedFile {
 public:
  /// Maps a file; `path` stands in messages. Throws kIo.
  MappedFile(const std::string& path, int descriptor, uint64_t size);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  /// Returns whether the file had fewer bytes than were mapped at a moment that a MappedFileGuard
  /// saw.
  bool was_cut() const;

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  struct Region* region_ = nullptr;  // null where the guard's table is full
};

}  // namespace vitrine::checkpoint
