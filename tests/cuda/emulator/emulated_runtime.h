// SPDX-License-Identifier: Apache-2.0
// The executor's runtime where there is no GPU: memory of the host, launches by the emulator.
// Copies and launches happen as late as a device may let them: the host's inputs are read, and
// results copied back, when somebody waits, after all that was started until then. Memory that is
// written to too early shows.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "backend_cuda/device_runtime.h"
#include "tests/cuda/emulator/emulator.h"

namespace vitrine::kernels::cuda::emulator {

/// What went over the bus.
struct Traffic {
  int64_t to_device = 0, to_host = 0, graph_launches = 0, captures = 0;
  size_t bytes_to_host = 0;
  size_t allocated = 0;  // bytes that are held
  // What the device says of itself.
  int compute_capability = 90;
  int most_shared_bytes = 227 * 1024;
};

class TestRuntime final : public backend_cuda::DeviceRuntime {
 public:
  /// A device of so much memory. `traffic` outlives it.
  TestRuntime(size_t capacity, Traffic& traffic) : capacity_(capacity), traffic_(traffic) {}
  ~TestRuntime() override;

  Status allocate(size_t bytes, void** memory) override;
  void release(void* memory) override;
  Status allocate_host(size_t bytes, void** memory) override;
  void release_host(void* memory) override;
  Status memory_info(size_t* free, size_t* total) override;
  Status most_shared_bytes(int* bytes) override {
    *bytes = traffic_.most_shared_bytes;
    return {};
  }
  Status compute_capability(int* capability) override {
    *capability = traffic_.compute_capability;
    return {};
  }
  Stream stream() override { return reinterpret_cast<Stream>(this); }
  Status wait() override { return {}; }
  Status copy_to_device(void* to, const void* from, size_t bytes) override;
  Status start_read_back(int lane, void* to, const void* from, size_t bytes) override;
  Status finish_read_back(int lane) override;
  Status copy_on_device(void* to, const void* from, size_t bytes, size_t stride,
                        size_t count) override;
  Status clear(void* memory, size_t bytes) override;
  Status begin_capture() override;
  Status end_capture(std::unique_ptr<backend_cuda::StepGraph>* graph) override;
  Status launch(backend_cuda::StepGraph& graph) override;

 private:
  struct ReadBack {
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
  };
  /// Runs what was started so far; returns the first status that is not ok.
  Status catch_up();

  size_t capacity_;
  Traffic& traffic_;
  std::map<void*, size_t> held_;
  std::map<const void*, size_t> host_held_;
  std::unique_ptr<Graph> capture_;
  std::vector<std::function<Status()>> started_;
  ReadBack lanes_[2];
};

}  // namespace vitrine::kernels::cuda::emulator
