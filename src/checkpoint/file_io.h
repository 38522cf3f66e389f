// SPDX-License-Identifier: Apache-2.0
// Private to the room: files by descriptor, with errors that name them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "mapped_file.h"
#include "vitrine/core.h"

namespace vitrine::checkpoint {

/// A regular file open for positional reads. Any number of threads may read.
class InputFile {
 public:
  /// Throws kIo where it can't be opened, kBadFile where it isn't a regular file.
  explicit InputFile(std::string path);
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&&) = delete;
  ~InputFile();

  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  /// Reads exactly `out.size()` bytes. Throws kIo, also where the file has become shorter.
  void read(uint64_t offset, std::span<std::byte> out) const;
  /// Has the system read so many bytes behind the caller's back, where it wants to.
  void read_ahead(uint64_t offset, uint64_t bytes) const noexcept;
  /// Returns the whole file in memory, mapped when this is asked for first. Throws kIo.
  std::span<const std::byte> map() const;
  /// Throws kIo where the file has become shorter since it was opened (also for a moment that a
  /// MappedFileGuard saw), or was written to.
  void check_unchanged() const;

 private:
  std::string path_;
  int descriptor_ = -1;
  uint64_t size_ = 0;
  int64_t modified_ns_ = 0;
  struct Map {
    std::mutex mutex;
    std::unique_ptr<MappedFile> file;
  };
  std::unique_ptr<Map> map_ = std::make_unique<Map>();
};

/// A temporary file beside `path` that takes its place on commit(), and vanishes without it.
class ReplacementFile {
 public:
  /// Who may read and write it, `mode` says from its first byte on. Throws kIo.
  explicit ReplacementFile(std::string path, unsigned mode = 0666);
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;
  ~ReplacementFile();

  /// Writes at a position. Throws kIo.
  void write(uint64_t offset, std::span<const std::byte> bytes);
  /// Flushes to disk and renames. Throws kIo.
  void commit();

  /// Returns the temporary file's path, for those who write by name.
  const std::string& temporary_path() const { return temporary_path_; }

 private:
  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
};

/// Returns 16 hexadecimal digits that no other process or thread has.
std::string random_suffix();

bool file_exists(const std::string& path);

}  // namespace vitrine::checkpoint
