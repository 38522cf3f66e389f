// What the tests of CUDA kernels share: every test runs under several orders of threads.
#pragma once

#include <gtest/gtest.h>

#include "tests/cuda/emulator/emulator.h"
#include "tests/kernels/kernel_test_util.h"

namespace vitrine::kernels::cuda::testing {

using emulator::DeviceArray;
using kernels::testing::Random;
using kernels::testing::same_bits;

inline constexpr uint64_t kSeeds = 3;

inline ::testing::AssertionResult ok(const Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "status " << status.code << ": " << status.what;
}

/// ||a - b|| / ||b||; NaN where an element is.
inline double relative_distance(std::span<const float> a, std::span<const double> b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

}  // namespace vitrine::kernels::cuda::testing
