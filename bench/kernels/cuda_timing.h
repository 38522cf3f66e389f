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

/// How long one launch takes; nothing runs until it is asked for.
class Timing {
 public:
  Timing(cudaStream_t stream, std::function<Status()> run, int launches)
      : stream_(stream), run_(std::move(run)), launches_(launches) {}

  /// Returns what a kernel says of what it is asked for.
  Status run_once() const { return run_(); }

  double microseconds() const {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    check(cudaDeviceSynchronize());  // the arrays' copies: the stream does not wait for them
    check(run_());                   // what a first launch sets up
    check(cudaStreamSynchronize(stream_));
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches_; ++i) check(run_());
    check(cudaStreamEndCapture(stream_, &graph));
    check(cudaGraphInstantiate(&executable, graph, 0));
    cudaEvent_t begin = nullptr, end = nullptr;
    check(cudaEventCreate(&begin));
    check(cudaEventCreate(&end));
    float best = 1e30f;
    for (int i = 0; i < kReplays; ++i) {
      float milliseconds = 0;
      check(cudaEventRecord(begin, stream_));
      check(cudaGraphLaunch(executable, stream_));
      check(cudaEventRecord(end, stream_));
      check(cudaEventSynchronize(end));
      check(cudaEventElapsedTime(&milliseconds, begin, end));
      best = std::min(best, milliseconds);
    }
    check(cudaEventDestroy(begin));
    check(cudaEventDestroy(end));
    check(cudaGraphExecDestroy(executable));
    check(cudaGraphDestroy(graph));
    return 1000.0 * best / launches_;
  }

 private:
  cudaStream_t stream_;
  std::function<Status()> run_;
  int launches_;
};

/// The words of the command line: names of kernels; none: all of them.
inline std::vector<std::string>& wanted_names() {
  static std::vector<std::string> names;
  return names;
}

/// Returns whether a name begins with one of them.
inline bool is_wanted(const std::string& name) {
  const auto begins = [&](const std::string& wanted) { return name.starts_with(wanted); };
  return wanted_names().empty() || std::ranges::any_of(wanted_names(), begins);
}

/// Times a kernel and prints a line, at once: a program that is ended keeps what it printed.
inline void print(const std::string& name, int64_t tokens, const Timing& timing, double bytes) {
  if (!is_wanted(name)) return;
  if (const Status status = timing.run_once(); !status.ok()) {  // the others may run
    std::printf("%s: %s\n", name.c_str(), status.what);
    return;
  }
  const double microseconds = timing.microseconds();
  std::printf("%-28s %6lld %10.2f us %12.0f bytes %9.1f GB/s\n", name.c_str(),
              static_cast<long long>(tokens), microseconds, bytes, bytes / microseconds / 1e3);
  std::fflush(stdout);
}

/// A stream of the first device, whose name is printed. The command line names what is wanted.
inline cudaStream_t open_device(int argc, char** argv) {
  wanted_names().assign(argv + 1, argv + argc);
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

/// Ten times the major number, and the minor one.
inline int compute_capability() {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0));
  return 10 * properties.major + properties.minor;
}

}  // namespace cuda_timing
