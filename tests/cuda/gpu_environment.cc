// Skips every test of the program where there is no GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace {

class NeedsGpu : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
  }
};

[[maybe_unused]] const bool is_added = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new NeedsGpu);
  return true;
}();

}  // namespace
