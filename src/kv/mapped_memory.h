// SPDX-License-Identifier: Apache-2.0
// Memory that takes up room only where it is touched.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace vitrine::kv {

/// Zeroed pages from the system. Throws kOutOfMemory naming what they were for.
class MappedMemory {
 public:
  /// kSparse: little of it will ever be touched, so the system need not have room for all of it.
  enum class Use { kWhole, kSparse };

  MappedMemory(size_t size, const std::string& what, Use use = Use::kWhole);
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedMemory& operator=(MappedMemory&&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

  /// Makes `count` bytes from `first` on zeros again, which take no room. Both are multiples of a
  /// page.
  void forget(size_t first, size_t count) const;
  static size_t page_bytes();
  /// Takes the whole pages of mapped memory, any object's or a file's, out of this process: they
  /// are zeros or the file's when they are touched again. What shares a page at either end stays.
  static void drop_whole_pages(void* data, size_t size);

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace vitrine::kv
