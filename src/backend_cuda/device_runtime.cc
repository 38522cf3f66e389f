#include "backend_cuda/device_runtime.h"

#include <cstring>
#include <utility>

namespace vitrine::backend_cuda {

void check(const Status& status, const std::string& what) {
  if (status.ok()) return;
  throw Error(ErrorKind::kInternal, what + " failed on the device (" + status.what + ", code " +
                                        std::to_string(status.code) +
                                        "); load the model again, or use --device cpu");
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
