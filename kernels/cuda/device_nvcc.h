// SPDX-License-Identifier: Apache-2.0
// The device layer for nvcc: names for what the GPU does. See device.h for the rules.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <utility>

#include "kernels/cuda/status.h"

/// Before a kernel's `void`: the most threads of a block, and if wanted the least blocks on an SM.
#define VITRINE_KERNEL(...) static __global__ __launch_bounds__(__VA_ARGS__)
/// Before a function that kernels call.
#define VITRINE_DEVICE static __device__ __forceinline__
/// Before a member function that kernels call.
#define VITRINE_DEVICE_METHOD __device__ __forceinline__

namespace vitrine::kernels::cuda {

// ---- where a thread is

VITRINE_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
VITRINE_DEVICE int block_threads() { return static_cast<int>(blockDim.x); }
VITRINE_DEVICE int block_x() { return static_cast<int>(blockIdx.x); }
VITRINE_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }
VITRINE_DEVICE int block_z() { return static_cast<int>(blockIdx.z); }
VITRINE_DEVICE int grid_x() { return static_cast<int>(gridDim.x); }
VITRINE_DEVICE int grid_y() { return static_cast<int>(gridDim.y); }
VITRINE_DEVICE int grid_z() { return static_cast<int>(gridDim.z); }

// ---- memory

extern __shared__ __align__(128) unsigned char vitrine_dynamic_shared[];
/// The block's dynamic shared memory, 128-byte aligned, uninitialised.
template <typename T>
VITRINE_DEVICE T* dynamic_shared() {
  return reinterpret_cast<T*>(vitrine_dynamic_shared);
}

/// 16 bytes.
struct alignas(16) Words4 {
  uint32_t x, y, z, w;
};
/// 16 bytes at a 16-byte aligned address (shared or global).
VITRINE_DEVICE Words4 load16(const void* from) { return *static_cast<const Words4*>(from); }
VITRINE_DEVICE void store16(void* to, Words4 words) { *static_cast<Words4*>(to) = words; }
/// 16 bytes of global memory that no thread of the grid writes and that is read once: weights.
VITRINE_DEVICE Words4 load16_once(const void* from) {
  Words4 words;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from));
  return words;
}

/// Copies 16 bytes from global to shared memory behind the thread's back (both 16-byte aligned);
/// where not `valid`, zeros, and nothing is read.
VITRINE_DEVICE void copy_async16(void* to_shared, const void* from_global, bool valid = true) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from_global),
               "r"(bytes)
               : "memory");
}
/// Closes this thread's group of copies.
VITRINE_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until at most kPending of this thread's groups are under way. What other threads copied
/// needs a barrier behind their wait.
template <int kPending>
VITRINE_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// ---- threads together

/// Keeps the compiler from moving loads and stores across it. Costs nothing by itself.
VITRINE_DEVICE void keep_order() { asm volatile("" ::: "memory"); }
VITRINE_DEVICE void sync_block() { __syncthreads(); }
VITRINE_DEVICE void sync_warp() { __syncwarp(); }
/// The value of lane (own lane ^ mask); of lane `source`; of lane own + delta (own where there is
/// none). float, int32_t, uint32_t, int64_t, uint64_t or double.
template <typename T>
VITRINE_DEVICE T shuffle_xor(T value, int mask) {
  return __shfl_xor_sync(0xffffffffu, value, mask);
}
template <typename T>
VITRINE_DEVICE T shuffle(T value, int source) {
  return __shfl_sync(0xffffffffu, value, source);
}
template <typename T>
VITRINE_DEVICE T shuffle_down(T value, int delta) {
  return __shfl_down_sync(0xffffffffu, value, delta);
}
/// The value of lane own - delta; own where there is none.
template <typename T>
VITRINE_DEVICE T shuffle_up(T value, int delta) {
  return __shfl_up_sync(0xffffffffu, value, delta);
}
/// Bit i: lane i's predicate.
VITRINE_DEVICE uint32_t ballot(bool predicate) { return __ballot_sync(0xffffffffu, predicate); }

/// Bit i: lane i's value is this lane's.
VITRINE_DEVICE uint32_t match(int32_t value) { return __match_any_sync(0xffffffffu, value); }
/// Reductions give every lane the result over all lanes.
VITRINE_DEVICE uint32_t reduce_max(uint32_t value) { return __reduce_max_sync(0xffffffffu, value); }
VITRINE_DEVICE uint32_t reduce_min(uint32_t value) { return __reduce_min_sync(0xffffffffu, value); }
VITRINE_DEVICE uint32_t reduce_add(uint32_t value) { return __reduce_add_sync(0xffffffffu, value); }

/// Atomic, relaxed; give the old value. The order of float sums varies: never for results.
VITRINE_DEVICE int32_t atomic_add(int32_t* at, int32_t value) { return atomicAdd(at, value); }
/// To a sum that nobody reads before all have added: by halves, with the carry. Shared memory has
/// no 64-bit sum of its own, and what stands for it begins anew whenever another thread was faster.
VITRINE_DEVICE void atomic_add_to_sum(uint64_t* at, uint64_t value) {
  auto* halves = reinterpret_cast<uint32_t*>(at);
  const auto low = static_cast<uint32_t>(value);
  const uint32_t before = atomicAdd(halves, low);
  const uint32_t high = static_cast<uint32_t>(value >> 32) + (before + low < low ? 1 : 0);
  if (high != 0) atomicAdd(halves + 1, high);
}
VITRINE_DEVICE float atomic_add(float* at, float value) { return atomicAdd(at, value); }
VITRINE_DEVICE int32_t atomic_max(int32_t* at, int32_t value) { return atomicMax(at, value); }
/// Makes this thread's writes before it visible to the device before those after it.
VITRINE_DEVICE void fence_device() { __threadfence(); }

// ---- tensor cores; fragments as in the PTX ISA's "Matrix Fragments for mma.m16n8k16 / .m16n8k32"

/// d = a * b + c of a warp: a [16, 16] row-major, b [16, 8] column-major, two bf16 a register.
VITRINE_DEVICE void mma_bf16_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                      const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}
/// The product of tiles in float16.
VITRINE_DEVICE void mma_f16_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                     const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}
/// a [16, 32], b [32, 8], four int8 a register; exact.
VITRINE_DEVICE void mma_s8_m16n8k32(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                    const int32_t (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]),
        "r"(c[2]), "r"(c[3]));
}
/// a [16, 32], b [32, 8], four E4M3 a register; in the float32 that the tensor core keeps. From
/// compute capability 8.9 on: only files that are compiled for nothing below may use it. On sm_90
/// ptxas makes two products of float16 of it: E4M3 at its own rate needs wgmma there.
VITRINE_DEVICE void mma_e4m3_m16n8k32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                      const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%11,%12,%13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

/// ldmatrix: kCount (1, 2, 4) matrices of 8 rows of 8 16-bit elements. Lane i gives the address of
/// row i % 8 of matrix i / 8, 16-byte aligned, in shared memory (lanes past the last matrix: any
/// valid row); lane t gets elements 2 * (t % 4) and the next of row t / 4 of each; with kTranspose,
/// of the transposed matrix.
template <int kCount, bool kTranspose = false>
VITRINE_DEVICE void load_matrix(uint32_t (&r)[kCount], const void* shared_row) {
  const auto from = static_cast<uint32_t>(__cvta_generic_to_shared(shared_row));
  if constexpr (kCount == 1 && !kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(from)
                 : "memory");
  } else if constexpr (kCount == 1) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0])
                 : "r"(from)
                 : "memory");
  } else if constexpr (kCount == 2 && !kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(from)
                 : "memory");
  } else if constexpr (kCount == 2) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(from)
                 : "memory");
  } else if constexpr (!kTranspose) {
    static_assert(kCount == 4);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  } else {
    static_assert(kCount == 4);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(from)
                 : "memory");
  }
}

// ---- numbers

VITRINE_DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
VITRINE_DEVICE float square_root(float x) { return __fsqrt_rn(x); }
VITRINE_DEVICE float absolute(float x) { return fabsf(x); }
VITRINE_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
VITRINE_DEVICE float bits_float(uint32_t bits) { return __uint_as_float(bits); }
VITRINE_DEVICE int population_count(uint32_t bits) { return __popc(bits); }
VITRINE_DEVICE double exp_double(double x) { return exp(x); }
VITRINE_DEVICE double log_double(double x) { return log(x); }

/// 16-bit floats as bits; narrowing rounds to nearest even, widening is exact.
VITRINE_DEVICE float widen_bf16(uint16_t bits) {
  return __uint_as_float(static_cast<uint32_t>(bits) << 16);
}
VITRINE_DEVICE uint16_t narrow_bf16(float x) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(x));
}
VITRINE_DEVICE float widen_f16(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
VITRINE_DEVICE uint16_t narrow_f16(float x) { return __half_as_ushort(__float2half_rn(x)); }
/// E4M3 (448 the largest, no infinities): narrowing rounds to nearest even and saturates.
VITRINE_DEVICE float widen_e4m3(uint8_t bits) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}
VITRINE_DEVICE uint8_t narrow_e4m3(float x) {
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
}

// ---- launching

/// Starts a kernel on the stream; refused launches come back with the runtime's words. A capturing
/// stream records it.
template <typename... Parameters, typename... Arguments>
Status launch(void (*kernel)(Parameters...), Dim3 grid, int threads, size_t shared_bytes,
              Stream stream, Arguments&&... arguments) {
  constexpr size_t kAlwaysThere = 48 * 1024;  // more has to be asked for
  cudaError_t error = cudaSuccess;
  if (shared_bytes > kAlwaysThere) {
    // Every launch of the kernel asks for the most: another thread may be about to start it with
    // more.
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes);
  }
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid.x, grid.y, grid.z);
    config.blockDim = dim3(static_cast<unsigned>(threads));
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    error = cudaLaunchKernelEx(&config, kernel, std::forward<Arguments>(arguments)...);
  }
  if (error == cudaSuccess) return {};
  cudaGetLastError();  // the next launch's status is its own
  return {static_cast<int>(error), cudaGetErrorString(error)};
}

}  // namespace vitrine::kernels::cuda
