// SPDX-License-Identifier: Apache-2.0
// The names of the emulator that kernel tests use, for a real GPU: the same test sources, linked
// with what nvcc made of the kernels, run there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda::emulator {

/// A GPU's order of threads is its own.
inline void set_seed(uint64_t) {}

/// Waits for what was launched; the first error.
inline Status wait() {
  cudaError_t error = cudaDeviceSynchronize();
  const cudaError_t launched = cudaGetLastError();
  if (error == cudaSuccess) error = launched;
  return error == cudaSuccess ? Status{}
                              : Status{static_cast<int>(error), cudaGetErrorString(error)};
}

/// `bytes` that host and GPU can read.
inline void* allocate_array(size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal);
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
  return memory;
}
inline void free_array(void* memory) { cudaFree(memory); }

}  // namespace vitrine::kernels::cuda::emulator

#include "tests/cuda/device_array.h"
