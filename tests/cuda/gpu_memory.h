// The names of the emulator that kernel tests use, for a real GPU: the same test sources, linked
// with what nvcc made of the kernels, run there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

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

/// `count` elements that host and GPU can read, an allocation of their own, all bits set.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    void* memory = nullptr;
    const cudaError_t error =
        cudaMallocManaged(&memory, count == 0 ? 1 : count * sizeof(T), cudaMemAttachGlobal);
    if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
    data_ = static_cast<T*>(memory);
    poison();
  }
  explicit DeviceArray(std::span<const T> values) : DeviceArray(values.size()) {
    if (!values.empty()) std::memcpy(data_, values.data(), values.size_bytes());
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::span<const T>(values)) {}
  DeviceArray(DeviceArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  void poison() { std::memset(static_cast<void*>(data_), 0xff, count_ * sizeof(T)); }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }
  T& operator[](size_t i) { return data_[i]; }
  const T& operator[](size_t i) const { return data_[i]; }
  std::vector<T> to_vector() const { return std::vector<T>(data_, data_ + count_); }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace vitrine::kernels::cuda::emulator
