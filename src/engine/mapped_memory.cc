// SPDX-License-Identifier: Apache-2.0
#include "engine/mapped_memory.h"

#include <sys/mman.h>

#include <algorithm>

#include "vitrine/core.h"

namespace vitrine::engine {

MappedMemory::MappedMemory(size_t size, const std::string& what)
    : size_(std::max<size_t>(size, 1)) {
  void* pages = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error(ErrorKind::kOutOfMemory,
                "cannot allocate " + std::to_string(size) + " bytes for " + what +
                    "; lower max_context, max_sequences or max_step_tokens");
  }
  data_ = static_cast<std::byte*>(pages);
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

void* PlanArena::allocate(size_t bytes) {
  constexpr size_t kAlignment = 64;
  constexpr size_t kChunk = size_t{1} << 20;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (chunks_.empty() || used_ + rounded > chunks_.back().size()) {
    chunks_.emplace_back(std::max(rounded, kChunk), "the plan's intermediates");
    used_ = 0;
  }
  void* memory = chunks_.back().data() + used_;
  used_ += rounded;
  num_bytes_ += rounded;
  return memory;
}

}  // namespace vitrine::engine
