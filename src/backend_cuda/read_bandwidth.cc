// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/read_bandwidth.h"

#include <algorithm>
#include <memory>

#include "engine/run/best_rate.h"
#include "kernels/cuda/memory/read.h"

namespace vitrine::backend_cuda {

namespace {

constexpr size_t kMaxBytes = size_t{1} << 30, kLeastBytes = size_t{1} << 20;
constexpr int kReads = 8;  // of all of it: one launch's time is hardly seen

}  // namespace

std::optional<double> measure_read_bandwidth(DeviceRuntime& runtime, double seconds) {
  size_t free = 0, total = 0;
  check(runtime.memory_info(&free, &total), "asking for the memory that is free");
  const size_t bytes = std::min({kMaxBytes, total / 64, free / 2}) / 16 * 16;
  if (bytes < kLeastBytes) return std::nullopt;
  const DeviceBuffer data(runtime, bytes, "reading it");
  const DeviceBuffer sums(runtime, kernels::cuda::kReadBlocks * sizeof(uint32_t), "what was read");
  HostBuffer back(runtime, sizeof(uint32_t), "what was read");
  std::unique_ptr<StepGraph> graph;
  check(runtime.begin_capture(), "recording reads");
  Status status;
  for (int i = 0; i < kReads && status.ok(); ++i) {
    status = kernels::cuda::read_words(data.data(), static_cast<int64_t>(bytes / 4),
                                       reinterpret_cast<uint32_t*>(sums.data()), runtime.stream());
  }
  const Status ended = runtime.end_capture(&graph);
  check(status, "starting reads");
  check(ended, "recording reads");
  return engine::best_rate(kReads * static_cast<double>(bytes), seconds, [&] {
    check(runtime.launch(*graph), "starting reads");
    check(runtime.start_read_back(0, back.data(), sums.data(), sizeof(uint32_t)), "reading");
    check(runtime.finish_read_back(0), "reading");
  });
}

}  // namespace vitrine::backend_cuda
