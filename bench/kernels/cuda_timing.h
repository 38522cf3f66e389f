// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of CUDA kernels share: a device, memory, the time of one launch. An error
// ends the program.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/status.h"

namespace cuda_timing {

using vitrine::kernels::cuda::Status;

inline constexpr int kReplays = 20;

inline void check(cudaError_t error) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(error));
  std::exit(1);
}

inline void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "CUDA: %s\n", status.what);
  std::exit(1);
}

/// Device memory with numbers in it; freed when the process ends.
template <typename T>
T* device_array(int64_t count, const std::function<T(int64_t)>& value) {
  std::vector<T> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value(i);
  void* memory = nullptr;
  check(cudaMalloc(&memory, values.size() * sizeof(T)));
  check(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return static_cast<T*>(memory);
}

inline float* floats(int64_t count) {
  // Spread over -3 … 3 without a generator: a multiplicative sequence.
  return device_array<float>(count, [](int64_t i) {
    const auto hash = static_cast<uint32_t>(i) * 2654435761u;
    return static_cast<float>(hash >> 8) * (6.0f / 16777216.0f) - 3.0f;
  });
}

/// Microseconds of one launch.
inline double time_launch(cudaStream_t stream, const std::function<Status()>& run, int launches) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check(cudaDeviceSynchronize());  // the arrays' copies: the stream does not wait for them
  check(run());                    // what a first launch sets up
  check(cudaStreamSynchronize(stream));
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < launches; ++i) check(run());
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&executable, graph, 0));
  cudaEvent_t begin = nullptr, end = nullptr;
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  float best = 1e30f;
  for (int i = 0; i < kReplays; ++i) {
    float milliseconds = 0;
    check(cudaEventRecord(begin, stream));
    check(cudaGraphLaunch(executable, stream));
    check(cudaEventRecord(end, stream));
    check(cudaEventSynchronize(end));
    check(cudaEventElapsedTime(&milliseconds, begin, end));
    best = std::min(best, milliseconds);
  }
  check(cudaEventDestroy(begin));
  check(cudaEventDestroy(end));
  check(cudaGraphExecDestroy(executable));
  check(cudaGraphDestroy(graph));
  return 1000.0 * best / launches;
}

inline void print(const std::string& name, int64_t tokens, double microseconds, double bytes) {
  std::printf("%-28s %6lld %10.2f us %12.0f bytes %9.1f GB/s\n", name.c_str(),
              static_cast<long long>(tokens), microseconds, bytes, bytes / microseconds / 1e3);
}

/// A stream of the first device, whose name is printed.
inline cudaStream_t open_device() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "CUDA: no device\n");
    std::exit(1);
  }
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  std::printf("%s, %d SMs\n", properties.name, properties.multiProcessorCount);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return stream;
}

}  // namespace cuda_timing
