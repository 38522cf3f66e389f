// SPDX-License-Identifier: Apache-2.0
// Serves the benchmarks of CPU kernels: memory as the engine has it, and random numbers.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <random>
#include <vector>

namespace vitrine::kernels {

/// Memory on cache lines, as the engine's arenas are, and where it is large in large pages, as
/// packed weights are: a 64-byte load that crosses a line costs two, and a processor fetches ahead
/// no farther than its page.
template <typename T>
struct LineAllocator {
  using value_type = T;
  LineAllocator() = default;
  template <typename U>
  explicit LineAllocator(const LineAllocator<U>&) {}
  T* allocate(size_t n) {
    const size_t bytes = n * sizeof(T);
    void* memory = ::operator new(bytes, alignment(bytes));
#ifdef MADV_HUGEPAGE
    if (bytes >= kLargePage) madvise(memory, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(memory);
  }
  void deallocate(T* p, size_t n) { ::operator delete(p, alignment(n * sizeof(T))); }
  template <typename U>
  bool operator==(const LineAllocator<U>&) const {
    return true;
  }

 private:
  static constexpr size_t kLargePage = size_t{2} << 20;
  static std::align_val_t alignment(size_t bytes) {
    return std::align_val_t(bytes < kLargePage ? 64 : kLargePage);
  }
};

template <typename T>
using Aligned = std::vector<T, LineAllocator<T>>;

inline Aligned<float> normals(size_t n) {
  std::mt19937 engine(7);
  std::normal_distribution<float> distribution;
  Aligned<float> values(n);
  for (float& value : values) value = distribution(engine);
  return values;
}

/// Random bytes, quickly: the large matrices have hundreds of megabytes.
inline Aligned<uint8_t> noise(size_t n) {
  Aligned<uint8_t> bytes(n);
  uint64_t state = 88172645463325252u;
  for (size_t i = 0; i < n; ++i) {
    if (i % 8 == 0) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
    }
    bytes[i] = static_cast<uint8_t>(state >> (i % 8 * 8));
  }
  return bytes;
}

}  // namespace vitrine::kernels
