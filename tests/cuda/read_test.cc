// SPDX-License-Identifier: Apache-2.0
// Reading memory: every word once.
#include "kernels/cuda/memory/read.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

TEST(CudaRead, EveryWordIsReadOnce) {
  Random random(22);
  for (const int64_t words : {4, 4096, 4100, 20000}) {
    std::vector<uint32_t> values;
    uint32_t expected = 0;
    for (int64_t i = 0; i < words; ++i) {
      values.push_back(static_cast<uint32_t>(random.integer(0, 0x7fffffff)));
      expected ^= values.back();
    }
    const DeviceArray<uint32_t> data(values);
    DeviceArray<uint32_t> sums(kReadBlocks);
    ASSERT_TRUE(ok(read_words(data.data(), words, sums.data(), nullptr)));
    uint32_t sum = 0;
    for (const uint32_t part : sums.to_vector()) sum ^= part;
    EXPECT_EQ(sum, expected);
  }
  EXPECT_EQ(read_words(nullptr, 6, nullptr, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
