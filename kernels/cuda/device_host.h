// SPDX-License-Identifier: Apache-2.0
// The device layer for a C++ compiler: each name of device_nvcc.h with the same meaning, in terms
// of the functions of `host`, which an emulator of a GPU's blocks and warps provides (the tests
// have one). See device.h for the rules.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/cpu/float8.h"
#include "kernels/cpu/half.h"
#include "kernels/cuda/status.h"

#define VITRINE_KERNEL(...) static
#define VITRINE_DEVICE static inline
#define VITRINE_DEVICE_METHOD inline
/// A trailing parameter of each function at which threads meet: where in the source they do.
#define VITRINE_SITE \
  ::vitrine::kernels::cuda::host::Site site = {__builtin_FILE(), __builtin_LINE()}

namespace vitrine::kernels::cuda {

namespace host {

struct Site {
  const char* file;
  int line;
};
/// Words that a lane hands to the others of its warp at once.
inline constexpr int kExchangeWords = 8;
using Exchange = uint32_t[32][kExchangeWords];

/// The running thread's place.
struct Place {
  int thread = 0, threads = 0;
  Dim3 block, grid;
};
const Place& place();
/// The block's shared memory; fails the launch where fewer than `bytes` were launched.
void* shared_memory(size_t bytes);
/// Returns when all threads of the block are here.
void meet_block(Site site);
/// Returns what all lanes of the warp gave, when they have; valid until the thread's next meeting.
const Exchange& meet_warp(const char* what, const uint32_t* words, int count, Site site);
void copy_async(void* to, const void* from, bool valid);
void copy_async_commit();
void copy_async_wait(int pending);
/// Ends the launch with this message.
[[noreturn]] void fail(const char* what, Site site);

struct Launch {
  Dim3 grid;
  int threads = 0;
  size_t shared_bytes = 0;
  Stream stream = nullptr;
};
/// Runs `thread` for each thread of the grid, or records it where the stream is captured.
Status run(const Launch& launch, std::function<void()> thread);

template <int kBytes>
inline void check_aligned(const void* address, Site site) {
  if (reinterpret_cast<uintptr_t>(address) % kBytes != 0) fail("misaligned address", site);
}

/// Bit i: lane i gave this word. (Index and shift stand apart: GCC 12's UBSan loses a variable that
/// is both in one expression.)
inline uint32_t bits_where(const Exchange& all, uint32_t word) {
  uint32_t bits = 0, bit = 1;
  for (const auto& words : all) {
    bits |= words[0] == word ? bit : 0;
    bit <<= 1;
  }
  return bits;
}

/// Lets the warp exchange a value; returns lane `source`'s (own where it is no lane).
template <typename T>
T exchange(const char* what, T value, int own, int source, Site site) {
  static_assert(std::is_trivially_copyable_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  uint32_t words[2] = {};
  std::memcpy(words, &value, sizeof(T));
  const Exchange& all = meet_warp(what, words, sizeof(T) / 4, site);
  T result;
  std::memcpy(&result, all[source >= 0 && source < 32 ? source : own], sizeof(T));
  return result;
}

}  // namespace host

// ---- where a thread is

VITRINE_DEVICE int thread_index() { return host::place().thread; }
VITRINE_DEVICE int block_threads() { return host::place().threads; }
VITRINE_DEVICE int block_x() { return static_cast<int>(host::place().block.x); }
VITRINE_DEVICE int block_y() { return static_cast<int>(host::place().block.y); }
VITRINE_DEVICE int block_z() { return static_cast<int>(host::place().block.z); }
VITRINE_DEVICE int grid_x() { return static_cast<int>(host::place().grid.x); }
VITRINE_DEVICE int grid_y() { return static_cast<int>(host::place().grid.y); }
VITRINE_DEVICE int grid_z() { return static_cast<int>(host::place().grid.z); }

// ---- memory

template <typename T>
VITRINE_DEVICE T* dynamic_shared() {
  static_assert(std::is_trivially_default_constructible_v<T>);
  return static_cast<T*>(host::shared_memory(sizeof(T)));
}

struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};
VITRINE_DEVICE Words4 load16(const void* from, VITRINE_SITE) {
  host::check_aligned<16>(from, site);
  Words4 words;
  std::memcpy(&words, from, sizeof(words));
  return words;
}
VITRINE_DEVICE void store16(void* to, Words4 words, VITRINE_SITE) {
  host::check_aligned<16>(to, site);
  std::memcpy(to, &words, sizeof(words));
}
VITRINE_DEVICE Words4 load16_once(const void* from, VITRINE_SITE) { return load16(from, site); }

/// The bytes arrive no sooner than the wait, and what was there is gone at once.
VITRINE_DEVICE void copy_async16(void* to_shared, const void* from_global, bool valid = true,
                                 VITRINE_SITE) {
  host::check_aligned<16>(to_shared, site);
  host::check_aligned<16>(from_global, site);
  host::copy_async(to_shared, from_global, valid);
}
VITRINE_DEVICE void copy_async_commit() { host::copy_async_commit(); }
template <int kPending>
VITRINE_DEVICE void copy_async_wait() {
  host::copy_async_wait(kPending);
}

// ---- threads together

VITRINE_DEVICE void keep_order() {}
VITRINE_DEVICE void sync_block(VITRINE_SITE) { host::meet_block(site); }
VITRINE_DEVICE void sync_warp(VITRINE_SITE) { host::meet_warp("sync_warp", nullptr, 0, site); }
template <typename T>
VITRINE_DEVICE T shuffle_xor(T value, int mask, VITRINE_SITE) {
  const int own = thread_index() % 32;
  return host::exchange("shuffle_xor", value, own, own ^ mask, site);
}
template <typename T>
VITRINE_DEVICE T shuffle(T value, int source, VITRINE_SITE) {
  return host::exchange("shuffle", value, thread_index() % 32, source & 31, site);
}
template <typename T>
VITRINE_DEVICE T shuffle_down(T value, int delta, VITRINE_SITE) {
  const int own = thread_index() % 32;
  return host::exchange("shuffle_down", value, own, own + delta, site);
}
template <typename T>
VITRINE_DEVICE T shuffle_up(T value, int delta, VITRINE_SITE) {
  const int own = thread_index() % 32;
  return host::exchange("shuffle_up", value, own, own - delta, site);
}
VITRINE_DEVICE uint32_t ballot(bool predicate, VITRINE_SITE) {
  const uint32_t word = predicate ? 1 : 0;
  const host::Exchange& all = host::meet_warp("ballot", &word, 1, site);
  return host::bits_where(all, 1);
}

VITRINE_DEVICE uint32_t match(int32_t value, VITRINE_SITE) {
  const auto own = static_cast<uint32_t>(value);
  const host::Exchange& all = host::meet_warp("match", &own, 1, site);
  return host::bits_where(all, own);
}
VITRINE_DEVICE uint32_t reduce_max(uint32_t value, VITRINE_SITE) {
  const host::Exchange& all = host::meet_warp("reduce_max", &value, 1, site);
  for (int lane = 0; lane < 32; ++lane) value = all[lane][0] > value ? all[lane][0] : value;
  return value;
}
VITRINE_DEVICE uint32_t reduce_min(uint32_t value, VITRINE_SITE) {
  const host::Exchange& all = host::meet_warp("reduce_min", &value, 1, site);
  for (int lane = 0; lane < 32; ++lane) value = all[lane][0] < value ? all[lane][0] : value;
  return value;
}
VITRINE_DEVICE uint32_t reduce_add(uint32_t value, VITRINE_SITE) {
  const host::Exchange& all = host::meet_warp("reduce_add", &value, 1, site);
  uint32_t sum = 0;
  for (int lane = 0; lane < 32; ++lane) sum += all[lane][0];
  return sum;
}

VITRINE_DEVICE int32_t atomic_add(int32_t* at, int32_t value) {
  const int32_t old = *at;
  *at = static_cast<int32_t>(static_cast<uint32_t>(old) + static_cast<uint32_t>(value));
  return old;
}
VITRINE_DEVICE void atomic_add_to_sum(uint64_t* at, uint64_t value) { *at += value; }
VITRINE_DEVICE float atomic_add(float* at, float value) {
  const float old = *at;
  *at = old + value;
  return old;
}
VITRINE_DEVICE int32_t atomic_max(int32_t* at, int32_t value) {
  const int32_t old = *at;
  *at = value > old ? value : old;
  return old;
}
VITRINE_DEVICE void fence_device() {}

// ---- tensor cores

namespace host {

/// d = a * b + c with 16-bit elements that `widen` reads. The products are exact in double; a GPU
/// adds them in an order and width of its own, so the last bits of d are not the GPU's.
template <float (*widen)(uint16_t)>
void mma_m16n8k16(const char* what, float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                  const float (&c)[4], Site site) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const Exchange& all = meet_warp(what, words, 6, site);
  const int lane = place().thread % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2);
    const int col = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const uint32_t pair_a = all[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)];
      const uint32_t pair_b = all[col * 4 + k % 8 / 2][4 + k / 8];
      const int shift = 16 * (k % 2);
      sum += static_cast<double>(widen(static_cast<uint16_t>(pair_a >> shift))) *
             widen(static_cast<uint16_t>(pair_b >> shift));
    }
    d[i] = static_cast<float>(sum);
  }
}

}  // namespace host

VITRINE_DEVICE void mma_bf16_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                      const float (&c)[4], VITRINE_SITE) {
  host::mma_m16n8k16<kernels::widen_bf16>("mma_bf16_m16n8k16", d, a, b, c, site);
}
VITRINE_DEVICE void mma_f16_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                     const float (&c)[4], VITRINE_SITE) {
  host::mma_m16n8k16<kernels::widen_f16>("mma_f16_m16n8k16", d, a, b, c, site);
}
VITRINE_DEVICE void mma_s8_m16n8k32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    const int32_t (&c)[4], VITRINE_SITE) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const host::Exchange& all = host::meet_warp("mma_s8_m16n8k32", words, 6, site);
  const int lane = thread_index() % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2);
    const int col = lane % 4 * 2 + i % 2;
    int64_t sum = c[i];
    for (int k = 0; k < 32; ++k) {
      const uint32_t four_a = all[row % 8 * 4 + k % 16 / 4][row / 8 + 2 * (k / 16)];
      const uint32_t four_b = all[col * 4 + k % 16 / 4][4 + k / 16];
      const int shift = 8 * (k % 4);
      sum += static_cast<int8_t>(four_a >> shift) * static_cast<int8_t>(four_b >> shift);
    }
    d[i] = static_cast<int32_t>(sum);  // without .satfinite the GPU wraps too
  }
}
/// Summed in double: the last bits are not a GPU's.
VITRINE_DEVICE void mma_e4m3_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                      const float (&c)[4], VITRINE_SITE) {
  const uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const host::Exchange& all = host::meet_warp("mma_e4m3_m16n8k32", words, 6, site);
  const int lane = thread_index() % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + 8 * (i / 2);
    const int col = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 32; ++k) {
      const uint32_t four_a = all[row % 8 * 4 + k % 16 / 4][row / 8 + 2 * (k / 16)];
      const uint32_t four_b = all[col * 4 + k % 16 / 4][4 + k / 16];
      const int shift = 8 * (k % 4);
      sum += double{kernels::e4m3_to_float(static_cast<uint8_t>(four_a >> shift))} *
             double{kernels::e4m3_to_float(static_cast<uint8_t>(four_b >> shift))};
    }
    d[i] = static_cast<float>(sum);
  }
}

template <int kCount, bool kTranspose = false>
VITRINE_DEVICE void load_matrix(uint32_t (&r)[kCount], const void* shared_row, VITRINE_SITE) {
  static_assert(kCount == 1 || kCount == 2 || kCount == 4);
  host::check_aligned<16>(shared_row, site);
  const int lane = thread_index() % 32;
  uint32_t words[4] = {};
  if (lane < 8 * kCount) std::memcpy(words, shared_row, sizeof(words));
  const host::Exchange& all = host::meet_warp("load_matrix", words, 4, site);
  for (int m = 0; m < kCount; ++m) {
    if constexpr (kTranspose) {
      uint32_t pair[2];
      for (int i = 0; i < 2; ++i) {
        const int row = lane % 4 * 2 + i, col = lane / 4;
        const uint32_t word = all[8 * m + row][col / 2];
        pair[i] = word >> (16 * (col % 2)) & 0xffffu;
      }
      r[m] = pair[0] | pair[1] << 16;
    } else {
      r[m] = all[8 * m + lane / 4][lane % 4];
    }
  }
}

// ---- numbers

VITRINE_DEVICE float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }
VITRINE_DEVICE float square_root(float x) { return std::sqrt(x); }
VITRINE_DEVICE float absolute(float x) { return std::fabs(x); }
VITRINE_DEVICE uint32_t float_bits(float x) { return kernels::bits_from_float(x); }
VITRINE_DEVICE float bits_float(uint32_t bits) { return kernels::float_from_bits(bits); }
VITRINE_DEVICE int population_count(uint32_t bits) { return __builtin_popcount(bits); }
VITRINE_DEVICE double exp_double(double x) { return std::exp(x); }
VITRINE_DEVICE double log_double(double x) { return std::log(x); }

using kernels::narrow_bf16;
using kernels::narrow_f16;
using kernels::widen_bf16;
using kernels::widen_f16;
VITRINE_DEVICE float widen_e4m3(uint8_t bits) { return kernels::e4m3_to_float(bits); }
VITRINE_DEVICE uint8_t narrow_e4m3(float x) { return kernels::float_to_e4m3(x); }

// ---- launching

template <typename... Parameters, typename... Arguments>
Status launch(void (*kernel)(Parameters...), Dim3 grid, int threads, size_t shared_bytes,
              Stream stream, Arguments&&... arguments) {
  std::tuple<Parameters...> values(static_cast<Parameters>(std::forward<Arguments>(arguments))...);
  return host::run({grid, threads, shared_bytes, stream},
                   [kernel, values] { std::apply(kernel, values); });
}

}  // namespace vitrine::kernels::cuda
