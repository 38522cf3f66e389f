// SPDX-License-Identifier: Apache-2.0
// RMSNorm with sums ahead of it and quantization behind.
#include "kernels/cuda/norm/rms_norm.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

struct Outputs {
  Outputs(int32_t rows, int64_t n)
      : out(static_cast<size_t>(rows * n)),
        bf16(static_cast<size_t>(rows * bf16_row_bytes(n)) / 2),
        int8(static_cast<size_t>(rows * int8_row_bytes(n))),
        e4m3(static_cast<size_t>(rows * int8_row_bytes(n))),
        norms(static_cast<size_t>(rows * 3)) {}
  void ask(RmsNorm& norm, int32_t group) {
    norm.out = out.data();
    norm.bf16_rows = bf16.data();
    norm.int8_rows = int8.data();
    norm.group_size = group;
    norm.e4m3_rows = e4m3.data();
    norm.norms = norms.data() + 1;
    norm.norm_stride = 3;
  }
  DeviceArray<float> out;
  DeviceArray<uint16_t> bf16;
  DeviceArray<uint8_t> int8, e4m3;
  DeviceArray<float> norms;
};

// What the portable kernels make of one residual row.
void expect_row(const Outputs& got, size_t row, const float* x, const float* weight, float eps,
                int64_t n, int32_t group) {
  std::vector<float> out(static_cast<size_t>(n));
  const float mean = portable_kernels().rms_norm(x, weight, eps, n, out.data());
  const auto padded = static_cast<size_t>(padded_cols(n));
  const auto groups = static_cast<size_t>(group_count(n, group));
  std::vector<int8_t> values(padded);
  std::vector<float> scales(groups);
  std::vector<GroupSum> sums(groups);
  portable_kernels().quantize_row(out.data(), n, group, values.data(), scales.data(), sums.data());
  const auto bf16_stride = static_cast<size_t>(bf16_row_bytes(n)) / 2;
  for (size_t i = 0; i < bf16_stride; ++i) {
    const float expected = i < out.size() ? out[i] : 0.0f;
    ASSERT_TRUE(
        same_bits(widen_bf16(got.bf16[row * bf16_stride + i]), widen_bf16(narrow_bf16(expected))));
    if (i >= out.size()) continue;
    ASSERT_TRUE(same_bits(got.out[row * out.size() + i], expected))
        << "n " << n << " element " << i;
  }
  values.resize(bf16_stride);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint8_t* record = got.int8.data() + static_cast<int64_t>(row) * int8_row_bytes(n) +
                            i / kRecordCols * kRecordBytes;
    ASSERT_EQ(static_cast<int8_t>(record[i % kRecordCols]), values[i]) << "n " << n << " " << i;
    const size_t g = i / static_cast<size_t>(group);
    if (g >= groups) continue;
    GroupFactor factor;
    std::memcpy(
        &factor,
        record + kRecordCols + i % kRecordCols / static_cast<size_t>(group) * sizeof(factor),
        sizeof(factor));
    ASSERT_TRUE(same_bits(factor.scale, scales[g])) << factor.scale << " and " << scales[g];
    ASSERT_EQ(factor.sum, sums[g].whole);
  }
  // What the launch of its own makes of the same row (linear_e4m3_test.cc says of what it makes).
  const DeviceArray<float> norm_row(out);
  DeviceArray<uint8_t> record(static_cast<size_t>(int8_row_bytes(n)));
  ASSERT_TRUE(ok(quantize_rows_e4m3(norm_row.data(), n, 1, n, record.data(), nullptr)));
  ASSERT_EQ(std::memcmp(record.data(), got.e4m3.data() + row * record.size(), record.size()), 0);
  EXPECT_TRUE(same_bits(got.norms[row * 3 + 1], std::sqrt(mean * static_cast<float>(n))));
  EXPECT_TRUE(std::isnan(got.norms[row * 3]));  // nothing beside the slot
}

TEST(CudaRmsNorm, HasThePortableBits) {
  Random random(3);
  uint64_t seed = 0;
  for (const int64_t n : {1, 4, 31, 33, 100, 128, 300, 1000, 2052}) {
    for (const int32_t group : {32, 64, 128}) {
      for (const bool has_weight : {true, false}) {
        emulator::set_seed(++seed);
        const int32_t rows = 2;
        auto x = random.normals(static_cast<size_t>(rows * n));
        if (n == 300) std::fill_n(x.begin() + 128, 128, 0.0f);
        const DeviceArray<float> weight(random.normals(static_cast<size_t>(n)));
        DeviceArray<float> residual(x);
        Outputs outputs(rows, n);
        RmsNorm norm{.n = n,
                     .eps = 1e-5f,
                     .weight = has_weight ? weight.data() : nullptr,
                     .residual = residual.data()};
        outputs.ask(norm, group);
        ASSERT_TRUE(ok(rms_norm(norm, rows, nullptr)));
        EXPECT_TRUE(same_bits(residual.to_vector(), x));
        for (size_t row = 0; row < 2; ++row) {
          expect_row(outputs, row, x.data() + row * static_cast<size_t>(n), norm.weight, 1e-5f, n,
                     group);
        }
      }
    }
  }
}

TEST(CudaRmsNorm, AgainstDouble) {
  Random random(4);
  const int64_t n = 1030;
  const DeviceArray<float> weight(random.normals(n));
  DeviceArray<float> residual(random.normals(n));
  DeviceArray<float> out(n);
  const RmsNorm norm{.n = n,
                     .eps = 1e-6f,
                     .weight = weight.data(),
                     .residual = residual.data(),
                     .out = out.data()};
  ASSERT_TRUE(ok(rms_norm(norm, 1, nullptr)));
  double sum = 0;
  for (const float x : residual.to_vector()) sum += double{x} * x;
  const double inverse = 1 / std::sqrt(sum / n + double{1e-6f});
  std::vector<double> reference;
  for (size_t i = 0; i < n; ++i) reference.push_back(residual[i] * inverse * weight[i]);
  EXPECT_LT(relative_distance(out.to_vector(), reference), 1e-6);
}

TEST(CudaRmsNorm, NumbersThatAreNone) {
  const int64_t n = 200;
  for (const float odd : {NAN, INFINITY, 1e30f, 1e-40f}) {
    Random random(5);
    auto x = random.normals(n);
    if (odd == 1e-40f) x.assign(n, 1e-42f);
    x[70] = odd;
    DeviceArray<float> residual(x);
    Outputs outputs(1, n);
    RmsNorm norm{.n = n, .eps = odd == 1e-40f ? 1.0f : 1e-5f, .residual = residual.data()};
    outputs.ask(norm, 64);
    ASSERT_TRUE(ok(rms_norm(norm, 1, nullptr)));
    expect_row(outputs, 0, x.data(), nullptr, norm.eps, n, 64);
  }
}

// The sum into the residual first; a row's bits are the same alone and among others.
TEST(CudaRmsNorm, WithAnAddendAndRowsOfABatch) {
  Random random(6);
  for (const int64_t n : {130, 516}) {
    const int32_t tokens = 5, k = 3;
    const auto before = random.normals(static_cast<size_t>(tokens * n));
    const DeviceArray<float> slots(random.normals(static_cast<size_t>(tokens * k * n)));
    const DeviceArray<float> weights(random.normals(tokens * k));
    const DeviceArray<int32_t> input_rows(std::vector<int32_t>{4, 1, 2});
    DeviceArray<float> residual(before);
    std::vector<float> expected = before;
    for (const int32_t token : {4, 1, 2}) {
      portable_kernels().combine(slots.data() + token * k * n, n, weights.data() + token * k, k,
                                 nullptr, 0, 0.9f, n, expected.data() + token * n);
    }
    Outputs outputs(3, n);
    RmsNorm norm{.n = n, .eps = 1e-5f, .residual = residual.data()};
    norm.addend = {.kind = Addend::Kind::kExperts,
                   .multiplier = 0.9f,
                   .slots = slots.data(),
                   .weights = weights.data(),
                   .top_k = k};
    norm.input_rows = input_rows.data();
    outputs.ask(norm, 32);
    ASSERT_TRUE(ok(rms_norm(norm, 3, nullptr)));
    EXPECT_TRUE(same_bits(residual.to_vector(), expected));
    for (size_t row = 0; row < 3; ++row) {
      const int32_t token = input_rows[row];
      expect_row(outputs, row, expected.data() + token * n, nullptr, 1e-5f, n, 32);
      // Alone.
      DeviceArray<float> lone(std::span<const float>(before).subspan(static_cast<size_t>(token * n),
                                                                     static_cast<size_t>(n)));
      DeviceArray<float> lone_out(static_cast<size_t>(n));
      RmsNorm alone{.n = n, .eps = 1e-5f, .residual = lone.data(), .out = lone_out.data()};
      alone.addend = norm.addend;
      alone.addend.slots += token * k * n;
      alone.addend.weights += token * k;
      ASSERT_TRUE(ok(rms_norm(alone, 1, nullptr)));
      for (int64_t i = 0; i < n; ++i) {
        ASSERT_TRUE(same_bits(lone_out[static_cast<size_t>(i)],
                              outputs.out[row * static_cast<size_t>(n) + static_cast<size_t>(i)]));
      }
    }
  }
}

TEST(CudaRmsNorm, RefusesWhatItCannotDo) {
  float x = 0;
  int8_t q = 0;
  RmsNorm norm{.n = 1, .residual = &x};
  EXPECT_EQ(rms_norm(norm, 0, nullptr).code, kInvalidArguments);
  norm.n = 40000;
  EXPECT_EQ(rms_norm(norm, 1, nullptr).code, kInvalidArguments);
  norm.n = 1;
  norm.int8_rows = &q;
  norm.group_size = 48;
  EXPECT_EQ(rms_norm(norm, 1, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
