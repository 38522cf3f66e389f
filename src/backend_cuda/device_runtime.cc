// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/device_runtime.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "kernels/cuda/status.h"

namespace vitrine::backend_cuda {

namespace {

// Codes of the CUDA runtime (driver_types.h).
constexpr int kOutOfDeviceMemory = 2;
// A kernel's fault, after which every call of the process fails: an illegal address, a time-out, an
// assertion; of the hardware's stack, an instruction, an alignment, an address space, a counter;
// one that has no other name.
constexpr int kFaults[] = {700, 702, 710, 714, 715, 716, 717, 718, 719};

}  // namespace

void check(const Status& status, const std::string& what) {
  if (status.ok()) return;
  const std::string said = what + " failed on the device (" + status.what + ", code " +
                           std::to_string(status.code) + "); ";
  if (status.code == kOutOfDeviceMemory) {
    throw Error(ErrorKind::kOutOfMemory, said + "use a smaller model, context or batch");
  }
  const bool is_lasting = std::ranges::find(kFaults, status.code) != std::end(kFaults);
  throw Error(ErrorKind::kInternal,
              said + (is_lasting ? "start the process again" : "load the model again") +
                  ", or use --device cpu");
}

void require_capable(DeviceRuntime& runtime) {
  using kernels::cuda::kMaxSharedBytes;
  constexpr int kLeastCapability = 80;
  int capability = 0, shared_bytes = 0;
  check(runtime.compute_capability(&capability), "asking for the compute capability");
  check(runtime.most_shared_bytes(&shared_bytes), "asking for the shared memory of a block");
  if (capability >= kLeastCapability && shared_bytes >= kMaxSharedBytes) return;
  throw Error(ErrorKind::kUnsupported,
              "the fused kernels need a GPU of compute capability 8.0 or above with " +
                  std::to_string(kMaxSharedBytes) +
                  " bytes of shared memory for a block (A100, H100, H200); this one has " +
                  std::to_string(capability / 10) + "." + std::to_string(capability % 10) +
                  " and " + std::to_string(shared_bytes) +
                  " bytes; use --kernels reference, or --device cpu");
}

namespace {

[[noreturn]] void throw_out_of_memory(DeviceRuntime& runtime, const char* where, size_t bytes,
                                      const std::string& what, const Status& status) {
  size_t free = 0, total = 0;
  std::string room = status.what;
  if (runtime.memory_info(&free, &total).ok()) {
    room += "; " + std::to_string(free) + " of the device's " + std::to_string(total) + " are free";
  }
  throw Error(ErrorKind::kOutOfMemory, "cannot allocate " + std::to_string(bytes) + " bytes " +
                                           where + " for " + what + " (" + room +
                                           "); use a smaller model, context or batch");
}

}  // namespace

DeviceBuffer::DeviceBuffer(DeviceRuntime& runtime, size_t bytes, const std::string& what) {
  if (bytes == 0) return;
  const Status status = runtime.allocate(bytes, &data_);
  if (!status.ok()) throw_out_of_memory(runtime, "on the device", bytes, what, status);
  runtime_ = &runtime;
  size_ = bytes;
  const Status cleared = runtime.clear(data_, bytes);
  if (cleared.ok()) return;
  runtime.release(data_);  // a constructor that throws has no destructor
  check(cleared, "clearing memory for " + what);
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) runtime_->release(data_);
}

void DeviceBuffer::swap(DeviceBuffer& other) noexcept {
  std::swap(runtime_, other.runtime_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
}

HostBuffer::HostBuffer(DeviceRuntime& runtime, size_t bytes, const std::string& what)
    : runtime_(&runtime) {
  const Status status = runtime.allocate_host(bytes, &data_);
  if (!status.ok()) throw_out_of_memory(runtime, "of page-locked memory", bytes, what, status);
  std::memset(data_, 0, bytes);
}

HostBuffer::~HostBuffer() {
  if (data_ != nullptr) runtime_->release_host(data_);
}

}  // namespace vitrine::backend_cuda
