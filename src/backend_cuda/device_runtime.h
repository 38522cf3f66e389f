// SPDX-License-Identifier: Apache-2.0
// The little that an executor needs of a GPU's runtime: memory, one stream, graphs. CUDA's is one
// implementation, the tests' emulator another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/status.h"
#include "vitrine/core.h"

namespace vitrine::backend_cuda {

using kernels::cuda::Status;
using kernels::cuda::Stream;

/// Launches that were recorded from a stream.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual int64_t num_kernels() const = 0;
};

/// One device, a stream, and another for what is read back. Every function returns what the runtime
/// said; copies and launches are asynchronous, in the stream's order. One thread at a time.
class DeviceRuntime {
 public:
  virtual ~DeviceRuntime() = default;

  virtual Status allocate(size_t bytes, void** memory) = 0;
  virtual void release(void* memory) = 0;
  /// Host memory that the device copies from and to without a detour.
  virtual Status allocate_host(size_t bytes, void** memory) = 0;
  virtual void release_host(void* memory) = 0;
  virtual Status memory_info(size_t* free, size_t* total) = 0;
  /// Ten times the major number and the minor one: 90.
  virtual Status compute_capability(int* capability) = 0;
  /// The most bytes of shared memory that a block may ask for.
  virtual Status most_shared_bytes(int* bytes) = 0;

  virtual Stream stream() = 0;
  /// `from` must stay until wait(), or until a readback behind it has arrived.
  virtual Status copy_to_device(void* to, const void* from, size_t bytes) = 0;
  /// For everything on the stream.
  virtual Status wait() = 0;
  /// Begins to copy to memory of allocate_host, once all before it on the stream has run. What
  /// follows on the stream does not wait for it, and may not write to `from` until it has arrived.
  /// The one readback of a pass; `lane`, 0 or 1, has one under way.
  virtual Status start_read_back(int lane, void* to, const void* from, size_t bytes) = 0;
  /// Waits for it and all before it: a fault of a kernel shows here.
  virtual Status finish_read_back(int lane) = 0;
  /// `count` pieces of so many bytes, each `stride` bytes behind the last one on both sides.
  virtual Status copy_on_device(void* to, const void* from, size_t bytes, size_t stride,
                                size_t count) = 0;
  virtual Status clear(void* memory, size_t bytes) = 0;

  /// From here on launches on the stream are recorded, not run.
  virtual Status begin_capture() = 0;
  /// Ends it, always. `graph` is set where the status is ok.
  virtual Status end_capture(std::unique_ptr<StepGraph>* graph) = 0;
  virtual Status launch(StepGraph& graph) = 0;
};

/// Throws kInternal, or kOutOfMemory, with what was tried and what the runtime said, where `status`
/// is not ok.
void check(const Status& status, const std::string& what);

/// Throws kUnsupported for a device that the kernels were not made for.
void require_capable(DeviceRuntime& runtime);
inline std::unique_ptr<DeviceRuntime> checked(std::unique_ptr<DeviceRuntime> runtime) {
  require_capable(*runtime);
  return runtime;
}

/// Memory on the device, zeroed; it must not outlive its runtime.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Throws kOutOfMemory with what was asked, for what, and what was free. 0 bytes are none.
  DeviceBuffer(DeviceRuntime& runtime, size_t bytes, const std::string& what);
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return size_; }

 private:
  void swap(DeviceBuffer& other) noexcept;

  DeviceRuntime* runtime_ = nullptr;
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// Page-locked memory of the host, as DeviceBuffer.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(DeviceRuntime& runtime, size_t bytes, const std::string& what);
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  DeviceRuntime* runtime_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace vitrine::backend_cuda
