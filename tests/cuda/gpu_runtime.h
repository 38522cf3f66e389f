// SPDX-License-Identifier: Apache-2.0
// The emulated runtime's name and counts for a real GPU: the executor's tests, linked with the CUDA
// runtime, run there.
#pragma once

#include <map>
#include <memory>

#include "backend_cuda/cuda_runtime.h"

namespace vitrine::kernels::cuda::emulator {

/// What went over the bus.
struct Traffic {
  int64_t to_device = 0, to_host = 0, graph_launches = 0, captures = 0;
  size_t bytes_to_host = 0;
  size_t allocated = 0;  // bytes that are held
  // At most.
  int compute_capability = 90;
  int most_shared_bytes = 227 * 1024;
};

/// Kernels of the graphs that were launched since the process began.
inline int64_t& launch_count() {
  static int64_t count = 0;
  return count;
}

/// Device 0, of which no more than `capacity` bytes are given.
class TestRuntime final : public backend_cuda::DeviceRuntime {
 public:
  TestRuntime(size_t capacity, Traffic& traffic)
      : gpu_(backend_cuda::make_cuda_runtime(0)), capacity_(capacity), traffic_(traffic) {}

  Status allocate(size_t bytes, void** memory) override {
    if (traffic_.allocated + bytes > capacity_) return {2, "out of memory"};
    const Status status = gpu_->allocate(bytes, memory);
    if (!status.ok()) return status;
    held_[*memory] = bytes;
    traffic_.allocated += bytes;
    return {};
  }
  void release(void* memory) override {
    traffic_.allocated -= held_.at(memory);
    held_.erase(memory);
    gpu_->release(memory);
  }
  Status allocate_host(size_t bytes, void** memory) override {
    return gpu_->allocate_host(bytes, memory);
  }
  void release_host(void* memory) override { gpu_->release_host(memory); }
  Status memory_info(size_t* free, size_t* total) override {
    *free = capacity_ - traffic_.allocated;
    *total = capacity_;
    return {};
  }
  Status most_shared_bytes(int* bytes) override {
    const Status status = gpu_->most_shared_bytes(bytes);
    if (*bytes > traffic_.most_shared_bytes) *bytes = traffic_.most_shared_bytes;
    return status;
  }
  Status compute_capability(int* capability) override {
    const Status status = gpu_->compute_capability(capability);
    if (*capability > traffic_.compute_capability) *capability = traffic_.compute_capability;
    return status;
  }
  Stream stream() override { return gpu_->stream(); }
  Status wait() override { return gpu_->wait(); }
  Status copy_to_device(void* to, const void* from, size_t bytes) override {
    ++traffic_.to_device;
    return gpu_->copy_to_device(to, from, bytes);
  }
  Status start_read_back(int lane, void* to, const void* from, size_t bytes) override {
    ++traffic_.to_host;
    traffic_.bytes_to_host += bytes;
    return gpu_->start_read_back(lane, to, from, bytes);
  }
  Status finish_read_back(int lane) override { return gpu_->finish_read_back(lane); }
  Status copy_on_device(void* to, const void* from, size_t bytes, size_t stride,
                        size_t count) override {
    return gpu_->copy_on_device(to, from, bytes, stride, count);
  }
  Status clear(void* memory, size_t bytes) override { return gpu_->clear(memory, bytes); }
  Status begin_capture() override {
    ++traffic_.captures;
    return gpu_->begin_capture();
  }
  Status end_capture(std::unique_ptr<backend_cuda::StepGraph>* graph) override {
    return gpu_->end_capture(graph);
  }
  Status launch(backend_cuda::StepGraph& graph) override {
    ++traffic_.graph_launches;
    launch_count() += graph.num_kernels();
    return gpu_->launch(graph);
  }

 private:
  std::unique_ptr<backend_cuda::DeviceRuntime> gpu_;
  size_t capacity_;
  Traffic& traffic_;
  std::map<void*, size_t> held_;
};

}  // namespace vitrine::kernels::cuda::emulator
