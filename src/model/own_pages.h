// SPDX-License-Identifier: Apache-2.0
// Memory that is the system's again as soon as it is let go, whatever the allocator would keep.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <string>
#include <utility>

#include "vitrine/core.h"

namespace vitrine::model {

class OwnPages {
 public:
  OwnPages() = default;
  /// Takes zeroed memory. Throws kOutOfMemory naming `what`.
  OwnPages(size_t size, const std::string& what) : size_(size) {
    data_ = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ != MAP_FAILED) return;
    throw Error(ErrorKind::kOutOfMemory, "cannot allocate " + std::to_string(size) + " bytes for " +
                                             what + "; free memory or use a smaller model");
  }
  OwnPages(OwnPages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  OwnPages& operator=(OwnPages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~OwnPages() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  /// Returns null where there is none.
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace vitrine::model
