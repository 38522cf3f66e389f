// SPDX-License-Identifier: Apache-2.0
#include "kv/mapped_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "vitrine/core.h"

namespace vitrine::kv {

MappedMemory::MappedMemory(size_t size, const std::string& what, Use use)
    : size_(std::max<size_t>(size, 1)) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (use == Use::kSparse ? MAP_NORESERVE : 0);
  void* pages = mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, -1, 0);
  if (pages == MAP_FAILED) {
    throw Error(ErrorKind::kOutOfMemory,
                "cannot allocate " + std::to_string(size) + " bytes for " + what +
                    "; lower kv_bytes, max_context, max_sequences or max_step_tokens");
  }
  data_ = static_cast<std::byte*>(pages);
  if (use == Use::kSparse) madvise(pages, size_, MADV_NOHUGEPAGE);  // which touch what nobody did
}

MappedMemory::~MappedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

void MappedMemory::forget(size_t first, size_t count) const {
  if (count > 0) madvise(data_ + first, count, MADV_DONTNEED);
}

void MappedMemory::drop_whole_pages(void* data, size_t size) {
  const size_t page = page_bytes(), rest = reinterpret_cast<uintptr_t>(data) % page;
  const size_t skipped = rest == 0 ? 0 : page - rest;
  if (size < skipped + page) return;
  madvise(static_cast<std::byte*>(data) + skipped, (size - skipped) / page * page, MADV_DONTNEED);
}

size_t MappedMemory::page_bytes() {
  static const auto bytes = static_cast<size_t>(std::max(sysconf(_SC_PAGESIZE), 4096L));
  return bytes;
}

}  // namespace vitrine::kv
