// SPDX-License-Identifier: Apache-2.0
// An array that kernels read and write, over allocate_array() and free_array() of the header that
// includes this one: the emulator's or a GPU's.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

namespace vitrine::kernels::cuda::emulator {

/// `count` elements, an allocation of their own, all bits set.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    data_ = static_cast<T*>(allocate_array(count == 0 ? 1 : count * sizeof(T)));
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
  ~DeviceArray() { free_array(data_); }

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
