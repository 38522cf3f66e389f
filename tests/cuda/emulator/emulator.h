// A GPU's blocks and warps on one host thread, so that kernels are tested where there is no GPU.
//
// Every thread of a block is a fiber that runs until it meets others (barrier, shuffle, tensor
// core) or returns; which warps run ahead of the others and in which order lanes run is drawn anew
// at each turn, from a seed, so that a result that hangs on a missing barrier differs from seed to
// seed. Found and reported as the launch's status:
// threads that wait for others that returned or wait elsewhere, a return with copies under way,
// misaligned vectors, shared memory beyond what was launched. Shared memory and device arrays begin
// as NaNs (all bits set). Separate heap memory for each array and each block's shared memory lets
// AddressSanitizer find what is out of range.
//
// What it cannot show: races inside one stretch between two meetings, the order in which a GPU's
// tensor cores add, anything about time. Launches run at once, in their order, whatever the stream;
// a stream that is captured records instead. One host thread only.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <span>
#include <vector>

#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda::emulator {

/// Where the order of blocks and threads begins from.
void set_seed(uint64_t seed);
/// Launches that ran since the process began, replayed ones too.
int64_t launch_count();

/// What a kernel's fault is reported as (a real runtime says cudaErrorLaunchFailure).
inline constexpr int kFault = 719;

/// Launches recorded from a stream, as a CUDA graph: arguments keep their values.
class Graph {
 public:
  /// Launches on `stream` are recorded from here on, not run, until end_capture().
  void begin_capture(Stream stream);
  void end_capture();
  /// Runs them in order; the first status that is not ok ends it.
  Status replay() const;
  int64_t num_kernels() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  friend Status vitrine::kernels::cuda::host::run(const host::Launch& launch,
                                                  std::function<void()> thread);
  struct Node {
    host::Launch launch;
    std::function<void()> thread;
  };
  std::vector<Node> nodes_;
};

/// `count` elements on the heap at an address that is a multiple of 256, as from cudaMalloc, all
/// bits set, and not a byte more.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 256, count == 0 ? 1 : count * sizeof(T)) != 0) {
      throw std::bad_alloc();
    }
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
  ~DeviceArray() { std::free(data_); }

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
