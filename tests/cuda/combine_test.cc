// Sums into the residual stream.
#include "kernels/cuda/combine/combine.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

TEST(CudaCombine, AddScaledHasThePortableBits) {
  Random random(1);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    emulator::set_seed(seed);
    for (const int64_t n : {1, 3, 4, 5, 37, 1023, 1024, 1025, 2500}) {
      const auto x = random.normals(static_cast<size_t>(n));
      const auto before = random.normals(static_cast<size_t>(n));
      std::vector<float> expected = before;
      portable_kernels().add_scaled(x.data(), 0.37f, n, expected.data());
      const DeviceArray<float> input(x);
      DeviceArray<float> residual(before);
      ASSERT_TRUE(ok(add_scaled(input.data(), 0.37f, n, residual.data(), nullptr)));
      EXPECT_TRUE(same_bits(residual.to_vector(), expected)) << "n " << n;
      std::vector<double> reference(before.begin(), before.end());
      for (size_t i = 0; i < reference.size(); ++i) reference[i] += double{0.37f} * x[i];
      EXPECT_LT(relative_distance(residual.to_vector(), reference), 1e-6);
    }
  }
}

TEST(CudaCombine, RefusesWhatItCannotDo) {
  EXPECT_EQ(add_scaled(nullptr, 1, 0, nullptr, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
