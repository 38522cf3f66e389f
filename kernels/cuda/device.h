// SPDX-License-Identifier: Apache-2.0
// The layer that kernels are written on. nvcc makes GPU code of it; any C++20 compiler makes code
// for whoever implements device_host.h's `host::Machine` (the tests' emulator), so that a kernel's
// indices, barriers and arithmetic are tested where there is no GPU.
//
// Rules of kernels on this layer:
// - Blocks are one-dimensional and a multiple of 32 threads.
// - All 32 lanes of a warp meet at each warp function, all threads of a block at each barrier, and
//   none returns while others still wait: early exits are for whole warps behind the last barrier.
// - Shared memory is dynamic: one struct a kernel, `dynamic_shared<S>()`, launched with sizeof(S).
// - Nothing is contracted (-fmad=false): fma_rn() where an FMA is meant, else each operation
// rounds.
#pragma once

#include "kernels/cuda/status.h"

#if defined(__CUDACC__)
#include "kernels/cuda/device_nvcc.h"
#else
#include "kernels/cuda/device_host.h"
#endif

namespace vitrine::kernels::cuda {

inline constexpr int kWarp = 32;

/// This thread's place in its warp, and its warp's in the block.
VITRINE_DEVICE int lane_index() { return thread_index() % kWarp; }
VITRINE_DEVICE int warp_index() { return thread_index() / kWarp; }

template <typename T>
constexpr T divide_up(T value, T divisor) {
  return (value + divisor - 1) / divisor;
}

}  // namespace vitrine::kernels::cuda
