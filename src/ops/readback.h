// SPDX-License-Identifier: Apache-2.0
// All traffic from a device to the host, counted. A pass makes exactly one (two where the host
// chooses in the middle of a device's); a test finds any other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace at {
class Tensor;
}

namespace vitrine::ops {

/// Counts the readbacks of one engine.
class Readback {
 public:
  /// Host memory to host memory (the CPU's fused path).
  void copy(void* destination, const void* source, size_t bytes);
  /// A contiguous float32 tensor on any device to host memory of `count` floats.
  void copy(float* destination, const at::Tensor& source, int64_t count);
  /// One that a device's runtime made.
  void note() { ++count_; }
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

}  // namespace vitrine::ops
