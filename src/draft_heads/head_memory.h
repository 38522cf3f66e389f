// SPDX-License-Identifier: Apache-2.0
// Memory for what heads compute with.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/weights.h"
#include "ops/plan.h"

namespace vitrine::draft_heads {

class HeadMemory final : public ops::PlanMemory {
 public:
  void* allocate(size_t bytes) override { return memory_.allocate(bytes, "draft heads"); }

 private:
  model::WeightMemory memory_;
};

/// Floats that begin at a cache line.
class AlignedFloats {
 public:
  explicit AlignedFloats(int64_t count) : floats_(static_cast<size_t>(count) + kPadding) {}
  AlignedFloats(const AlignedFloats& other) : floats_(other.floats_.size()) {
    std::copy_n(other.data(), floats_.size() - kPadding, data());
  }
  AlignedFloats& operator=(const AlignedFloats&) = delete;

  uint64_t bytes() const { return floats_.size() * sizeof(float); }
  /// Returns bytes() of so many.
  static uint64_t bytes_of(int64_t count) {
    return (static_cast<uint64_t>(count) + kPadding) * sizeof(float);
  }
  float* data() { return floats_.data() + skipped(); }
  const float* data() const { return floats_.data() + skipped(); }

 private:
  static constexpr size_t kPadding = 16, kLine = 64;
  size_t skipped() const {
    const auto address = reinterpret_cast<uintptr_t>(floats_.data());
    return (kLine - address % kLine) % kLine / sizeof(float);
  }

  std::vector<float> floats_;
};

}  // namespace vitrine::draft_heads
