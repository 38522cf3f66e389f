// SPDX-License-Identifier: Apache-2.0
// Skips every test of the program where there is no GPU, and those of what it lacks.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <string>

namespace {

class NeedsGpu : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo& test) override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    int major = 0;
    const bool is_e4m3 = std::string(test.test_suite_name()).find("E4M3") != std::string::npos;
    if (is_e4m3 &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess &&
        major < 9) {
      GTEST_SKIP() << "products of 8-bit floats: engines refuse them on this device";
    }
  }
};

[[maybe_unused]] const bool is_added = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new NeedsGpu);
  return true;
}();

}  // namespace
