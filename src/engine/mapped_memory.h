// SPDX-License-Identifier: Apache-2.0
// Memory that takes up room only where it is touched.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ops/plan.h"

namespace vitrine::engine {

/// Zeroed pages from the system. Throws kOutOfMemory naming what they were for.
class MappedMemory {
 public:
  MappedMemory(size_t size, const std::string& what);
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedMemory& operator=(MappedMemory&&) = delete;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// The intermediates of one plan.
class PlanArena : public ops::PlanMemory {
 public:
  void* allocate(size_t bytes) override;
  size_t num_bytes() const { return num_bytes_; }

 private:
  std::vector<MappedMemory> chunks_;
  size_t used_ = 0;  // of the last chunk
  size_t num_bytes_ = 0;
};

}  // namespace vitrine::engine
