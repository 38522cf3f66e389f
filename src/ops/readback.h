// SPDX-License-Identifier: Apache-2.0
// All traffic from a device to the host, counted. A pass makes exactly one (two where the host
// chooses in the middle of a device's); a test finds any other.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vitrine::ops {

/// Counts the readbacks of one engine.
class Readback {
 public:
  /// Host memory to host memory (the CPU's fused path).
  void copy(void* destination, const void* source, size_t bytes);
  /// One that a device's runtime made, or libtorch.
  void note() { ++count_; }
  uint64_t count() const { return count_; }

 private:
  uint64_t count_ = 0;
};

}  // namespace vitrine::ops
