// SPDX-License-Identifier: Apache-2.0
// Hidden rows of gate and up that stand by themselves.
#include "kernels/cuda/gating/gating.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

constexpr Gating kClamped = {Gating::Kind::kClamped, 1.702f, 0.5f};

/// Numbers on both sides of the limits, and what is none.
std::vector<float> numbers(Random& random, size_t n) {
  std::vector<float> values = random.normals(n, 4.0f);
  const float odd[] = {0.5f, -0.5f, 0.0f, -0.0f, INFINITY, -INFINITY, NAN, 90.0f, -90.0f};
  for (size_t i = 0; i < std::size(odd); ++i) values[7 * i] = odd[i];
  return values;
}

TEST(CudaGating, SiluHasTheBitsOfAFusedProduct) {
  Random random(33);
  const size_t n = 301;
  const DeviceArray<float> gate(random.normals(n, 4.0f)), up(random.normals(n));
  DeviceArray<float> out(n);
  ASSERT_TRUE(ok(apply_gating({}, gate.data(), up.data(), static_cast<int64_t>(n), out.data(),
                              FloatFormat::kF32, nullptr)));
  const float one = 1.0f;
  Weight gate_column, up_column;
  gate_column.rows = up_column.rows = static_cast<int64_t>(n);
  gate_column.cols = up_column.cols = 1;
  gate_column.data = gate.data();
  up_column.data = up.data();
  Activations x;
  x.values = &one;
  x.value_stride = 1;
  RowMap rows;
  rows.count = 1;
  std::vector<float> expected(n);
  portable_kernels().gate_up(gate_column, up_column, 0, static_cast<int64_t>(n), x, rows,
                             expected.data(), static_cast<int64_t>(n));
  EXPECT_TRUE(same_bits(out.to_vector(), expected));
}

TEST(CudaGating, ClampedHasThePortableBits) {
  Random random(34);
  for (const int64_t n : {int64_t{64}, int64_t{129}, int64_t{1000}}) {
    const DeviceArray<float> gate(numbers(random, static_cast<size_t>(n)));
    std::vector<float> ups = numbers(random, static_cast<size_t>(n));
    std::ranges::reverse(ups);
    const DeviceArray<float> up(ups);
    for (const Gating& gating : {kClamped, Gating{Gating::Kind::kClamped, 1.0f, 7.0f}}) {
      DeviceArray<float> out(static_cast<size_t>(n));
      DeviceArray<uint16_t> rounded(static_cast<size_t>(n));
      ASSERT_TRUE(ok(
          apply_gating(gating, gate.data(), up.data(), n, out.data(), FloatFormat::kF32, nullptr)));
      ASSERT_TRUE(ok(apply_gating(gating, gate.data(), up.data(), n, rounded.data(),
                                  FloatFormat::kBF16, nullptr)));
      std::vector<float> expected(static_cast<size_t>(n));
      portable_kernels().apply_gating(gating, gate.data(), up.data(), n, expected.data());
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_TRUE(same_bits(out[i], expected[i])) << gate[i] << " " << up[i];
        ASSERT_TRUE(same_bits(widen_bf16(rounded[i]), widen_bf16(narrow_bf16(expected[i]))));
      }
    }
  }
}

TEST(CudaGating, ClampedAgainstDouble) {
  Random random(35);
  const size_t n = 200;
  const DeviceArray<float> gate(random.normals(n)), up(random.normals(n));
  DeviceArray<float> out(n);
  ASSERT_TRUE(ok(apply_gating(kClamped, gate.data(), up.data(), static_cast<int64_t>(n), out.data(),
                              FloatFormat::kF32, nullptr)));
  std::vector<double> expected;
  for (size_t i = 0; i < n; ++i) {
    const double g = std::min<double>(gate[i], 0.5), u = std::clamp<double>(up[i], -0.5, 0.5);
    expected.push_back((u + 1) * g / (1 + std::exp(-double{kClamped.alpha} * g)));
  }
  EXPECT_LT(relative_distance(out.to_vector(), expected), 1e-6);
}

TEST(CudaGating, RefusesWhatItCannotDo) {
  const auto refused = [](Gating::Kind kind, int64_t count, FloatFormat format) {
    return apply_gating({kind, 1.0f, 1.0f}, nullptr, nullptr, count, nullptr, format, nullptr)
               .code == kInvalidArguments;
  };
  EXPECT_TRUE(refused(Gating::Kind::kSilu, 0, FloatFormat::kF32));
  EXPECT_TRUE(refused(Gating::Kind::kClamped, 1, FloatFormat::kF16));
  EXPECT_TRUE(refused(Gating::Kind::kGeluTanh, 1, FloatFormat::kF32));
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
