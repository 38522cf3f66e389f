// The executor's runtime where there is no GPU: memory of the host, launches by the emulator.
#pragma once

#include <map>
#include <memory>

#include "backend_cuda/device_runtime.h"
#include "tests/cuda/emulator/emulator.h"

namespace vitrine::kernels::cuda::emulator {

/// What went over the bus.
struct Traffic {
  int64_t to_device = 0, to_host = 0, graph_launches = 0, captures = 0;
  size_t bytes_to_host = 0;
  size_t allocated = 0;  // bytes that are held
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
  Stream stream() override { return reinterpret_cast<Stream>(this); }
  Status copy_to_device(void* to, const void* from, size_t bytes) override;
  Status read_back(void* to, const void* from, size_t bytes) override;
  Status copy_on_device(void* to, const void* from, size_t bytes) override;
  Status clear(void* memory, size_t bytes) override;
  Status begin_capture() override;
  Status end_capture(std::unique_ptr<backend_cuda::StepGraph>* graph) override;
  Status launch(backend_cuda::StepGraph& graph) override;

 private:
  size_t capacity_;
  Traffic& traffic_;
  std::map<void*, size_t> held_;
  std::unique_ptr<Graph> capture_;
};

}  // namespace vitrine::kernels::cuda::emulator
