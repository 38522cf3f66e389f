// SPDX-License-Identifier: Apache-2.0
// What the tests of CUDA kernels share: memory, orders of threads, comparisons.
#pragma once

#include <gtest/gtest.h>

#if defined(VITRINE_TESTS_ON_GPU)
#include "tests/cuda/gpu_memory.h"
#else
#include "tests/cuda/emulator/emulator.h"
#endif
#include "tests/kernels/kernel_test_util.h"

namespace vitrine::kernels::cuda::testing {

using emulator::DeviceArray;
using kernels::testing::Random;
using kernels::testing::same_bits;

inline constexpr uint64_t kSeeds = 3;

/// What a launch came to, when it has ended.
inline ::testing::AssertionResult ok([[maybe_unused]] Status status) {
#if defined(VITRINE_TESTS_ON_GPU)
  if (status.ok()) status = emulator::wait();
#endif
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
