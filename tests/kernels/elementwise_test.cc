// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embedding, embedding rows and weighted sums.
#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

const int64_t kLengths[] = {1, 2, 15, 16, 17, 31, 48, 63, 100, 257, 1000};

TEST(RmsNorm, AgainstDouble) {
  Random random(1);
  for (const int64_t n : kLengths) {
    const std::vector<float> x = random.normals(n, 3.0f);
    const std::vector<float> weight = random.normals(n);
    const double mean = std::pow(norm(x.data(), n), 2) / static_cast<double>(n);
    const double tolerance = (static_cast<double>(n) / 16 + 8) * kEpsilon;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out(n), bare(n), in_place = x;
      const float got = table->rms_norm(x.data(), weight.data(), 1e-6f, n, out.data());
      EXPECT_NEAR(got, mean, tolerance * mean) << table->isa << " " << n;
      EXPECT_TRUE(same_bits(got, table->mean_square(x.data(), n)));
      table->rms_norm(x.data(), nullptr, 1e-6f, n, bare.data());
      table->rms_norm(in_place.data(), weight.data(), 1e-6f, n, in_place.data());
      EXPECT_TRUE(same_bits(out, in_place));
      for (int64_t i = 0; i < n; ++i) {
        const double expected = x[i] / std::sqrt(mean + 1e-6f);
        EXPECT_NEAR(bare[i], expected, tolerance * std::fabs(expected));
        EXPECT_TRUE(same_bits(out[i], bare[i] * weight[i]));
      }
    }
  }
}

TEST(RmsNorm, SameBitsInEveryTable) {
  if (vector_tables().empty()) GTEST_SKIP() << "no vector table runs on this machine";
  Random random(2);
  for (const int64_t n : kLengths) {
    std::vector<float> x = random.normals(n, 5.0f);
    const std::vector<float> weight = random.normals(n);
    for (const float special : {1.0f, 1e-30f, 1e25f, static_cast<float>(NAN)}) {
      x[n / 2] *= special;
      std::vector<float> a(n), b(n);
      const float mean_a = portable_kernels().rms_norm(x.data(), weight.data(), 1e-5f, n, a.data());
      for (const CpuKernels* table : vector_tables()) {
        const float mean_b = table->rms_norm(x.data(), weight.data(), 1e-5f, n, b.data());
        EXPECT_TRUE(same_bits(mean_a, mean_b)) << table->isa;
        EXPECT_TRUE(same_bits(a, b)) << table->isa;
      }
    }
  }
}

TEST(Rope, AgainstDoubleAndSameBits) {
  Random random(5);
  for (const int32_t n : {2, 4, 6, 30, 32, 34, 64, 96, 128, 130, 256}) {
    const std::vector<float> x = random.normals(n);
    std::vector<float> cos(n / 2), sin(n / 2);
    for (int32_t i = 0; i < n / 2; ++i) {
      cos[i] = std::cos(0.37f * static_cast<float>(i));
      sin[i] = std::sin(0.37f * static_cast<float>(i));
    }
    std::vector<float> first;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out = x;
      table->rope(out.data(), cos.data(), sin.data(), n);
      for (int32_t i = 0; i < n / 2; ++i) {
        const double a = x[i], b = x[i + n / 2], c = cos[i], s = sin[i];
        const double bound = 3 * kEpsilon * (std::fabs(a) + std::fabs(b));
        EXPECT_NEAR(out[i], a * c - b * s, bound);
        EXPECT_NEAR(out[i + n / 2], b * c + a * s, bound);
      }
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(first, out)) << n;
    }
  }
}

TEST(EmbedRow, WidensAndScales) {
  Random random(6);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    for (const int64_t cols : kLengths) {
      const Matrix table = float_matrix(random, format, 3, cols);
      for (const CpuKernels* kernels : available_tables()) {
        std::vector<float> out(cols);
        kernels->embed_row(table.weight, 2, 1.7f, out.data());
        for (int64_t i = 0; i < cols; ++i) {
          EXPECT_EQ(out[i], table.values[2 * cols + i] * 1.7f) << kernels->isa;
        }
      }
    }
  }
  // Every half, also denormals and infinities, widens exactly.
  std::vector<uint16_t> halves(0x10000);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  for (const WeightFormat format : {WeightFormat::kF16, WeightFormat::kBF16}) {
    const Weight weight{.format = format, .rows = 1, .cols = 0x10000, .data = halves.data()};
    for (const CpuKernels* kernels : available_tables()) {
      std::vector<float> out(0x10000), expected(0x10000);
      kernels->embed_row(weight, 0, 1.0f, out.data());
      for (int i = 0; i < 0x10000; ++i) {
        expected[i] = format == WeightFormat::kF16 ? widen_f16(halves[i]) : widen_bf16(halves[i]);
      }
      EXPECT_TRUE(same_bits(out, expected)) << kernels->isa;
    }
  }
}

/// Every E4M3 number, subnormal ones too, and more than one group.
TEST(EmbedRow, EveryE4M3Number) {
  std::vector<uint8_t> codes;
  for (int i = 0; i < 256; ++i) {
    if ((i & 0x7f) != 0x7f) codes.push_back(static_cast<uint8_t>(i));
  }
  const std::vector<float> scales = {0.37f, -2.5f};
  const Weight weight{.format = WeightFormat::kE4M3,
                      .group_size = kE4M3Group,
                      .rows = 1,
                      .cols = static_cast<int64_t>(codes.size()),
                      .data = codes.data(),
                      .scales = scales.data()};
  for (const CpuKernels* kernels : available_tables()) {
    std::vector<float> out(codes.size()), expected;
    kernels->embed_row(weight, 0, 1.7f, out.data());
    for (size_t i = 0; i < codes.size(); ++i) {
      expected.push_back(e4m3_to_float(codes[i]) * scales[i / 128] * 1.7f);
    }
    EXPECT_TRUE(same_bits(out, expected)) << kernels->isa;
  }
}

TEST(Combine, AddsInSlotOrder) {
  Random random(7);
  for (const int64_t n : kLengths) {
    for (const int32_t k : {1, 2, 3, 8}) {
      for (const bool with_shared : {false, true}) {
        const int64_t stride = n + 3;
        const std::vector<float> slots = random.normals(k * stride);
        const std::vector<float> weights = random.normals(k);
        const std::vector<float> shared = random.normals(n);
        const std::vector<float> residual = random.normals(n);
        for (const CpuKernels* table : available_tables()) {
          std::vector<float> out = residual;
          table->combine(slots.data(), stride, weights.data(), k,
                         with_shared ? shared.data() : nullptr, 0.3f, 1.9f, n, out.data());
          for (int64_t i = 0; i < n; ++i) {
            // Each product and each sum is rounded (this file is built with -ffp-contract=off).
            float sum = weights[0] * slots[i];
            for (int32_t s = 1; s < k; ++s) sum = sum + weights[s] * slots[s * stride + i];
            if (with_shared) sum = sum + 0.3f * shared[i];
            const float expected = residual[i] + 1.9f * sum;
            EXPECT_TRUE(same_bits(out[i], expected)) << table->isa << " n " << n << " k " << k;
          }
        }
      }
    }
  }
}

TEST(AddScaled, RoundsProductAndSum) {
  Random random(8);
  for (const int64_t n : kLengths) {
    const std::vector<float> x = random.normals(n);
    const std::vector<float> residual = random.normals(n);
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out = residual;
      table->add_scaled(x.data(), 0.22f, n, out.data());
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[i], residual[i] + 0.22f * x[i]);
      out = residual;
      out.push_back(3.0f);
      table->multiply(x.data(), n, out.data());
      for (int64_t i = 0; i < n; ++i) EXPECT_EQ(out[i], residual[i] * x[i]);
      EXPECT_EQ(out[n], 3.0f) << "written behind the end";
    }
  }
}

TEST(Gating, ClampsAndKeepsWhatIsNoNumber) {
  Random random(17);
  const Gating gating{Gating::Kind::kClamped, 1.702f, 0.7f};
  for (const int64_t n : kLengths) {
    std::vector<float> gate = random.normals(n), up = random.normals(n);
    gate[0] = 80.0f;  // beyond the limit
    if (n > 2) gate[1] = -200.0f, up[2] = -30.0f;
    if (n > 40) gate[33] = NAN, up[35] = NAN, gate[37] = -INFINITY, up[38] = INFINITY;
    std::vector<float> first;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out(static_cast<size_t>(n)), in_place = gate;
      table->apply_gating(gating, gate.data(), up.data(), n, out.data());
      table->apply_gating(gating, in_place.data(), up.data(), n, in_place.data());
      EXPECT_TRUE(same_bits(out, in_place));
      if (first.empty()) first = out;
      EXPECT_TRUE(same_bits(first, out)) << table->isa;
      for (int64_t i = 0; i < n; ++i) {
        if (std::isnan(gate[i]) || std::isnan(up[i])) {
          EXPECT_TRUE(std::isnan(out[i]));
          continue;
        }
        if (std::isinf(gate[i])) continue;  // minus infinity over infinity
        const double g = std::min<double>(gate[i], gating.limit);
        const double u = std::clamp<double>(up[i], -gating.limit, gating.limit);
        const double sigma = 1 / (1 + std::exp(-double{gating.alpha} * g));
        const double expected = (u + 1) * g * sigma;
        EXPECT_NEAR(out[i], expected, 1e-6 * (1 + std::fabs(expected))) << i;
      }
    }
  }
}

TEST(ReadLines, TakesEachWordOnce) {
  Random random(9);
  std::vector<uint64_t> words(8 * 70 + 1);
  for (uint64_t& word : words) {
    word = static_cast<uint64_t>(random.integer(0, INT32_MAX)) << 33 ^
           static_cast<uint64_t>(random.integer(0, INT32_MAX));
  }
  for (const int64_t lines : {0, 1, 3, 4, 7, 8, 9, 31, 70}) {
    for (const int64_t first : {0, 1}) {  // off any alignment
      uint64_t expected = 0;
      for (int64_t i = 0; i < 8 * lines; ++i) expected ^= words[first + i];
      for (const CpuKernels* table : available_tables()) {
        EXPECT_EQ(table->read_lines(words.data() + first, lines), expected)
            << table->isa << " " << lines;
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
