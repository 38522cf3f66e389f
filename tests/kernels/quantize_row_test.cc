// SPDX-License-Identifier: Apache-2.0
// Activation quantization: with a scale for each group, and with one for a row.
#include <algorithm>
#include <numeric>

#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

TEST(QuantizeRow, IsRoundToNearestEvenOfTheQuotient) {
  Random random(3);
  for (const int32_t group_size : {32, 64, 128}) {
    for (const int n :
         {1, 15, 31, 32, 33, 48, 65, 127, 128, 512, 517}) {  // also a shorter last group
      const std::vector<float> x = random.normals(n, 2.0f);
      const auto groups = static_cast<size_t>(group_count(n, group_size));
      const auto padded = static_cast<size_t>(padded_cols(n));
      for (const CpuKernels* table : available_tables()) {
        std::vector<int8_t> values(padded + 1, 99);
        std::vector<float> scales(groups);
        std::vector<GroupSum> sums(groups);
        table->quantize_row(x.data(), n, group_size, values.data(), scales.data(), sums.data());
        for (size_t g = 0; g < groups; ++g) {
          const int begin = static_cast<int>(g) * group_size;
          const int end = std::min(begin + group_size, n);
          float max = 0;
          int32_t sum = 0;
          int32_t first_half = 0;
          for (int i = begin; i < end; ++i) {
            max = std::max(max, std::fabs(x[i]));
            sum += values[i];
            if (i < begin + group_size / 2) first_half += values[i];
          }
          EXPECT_EQ(scales[g], max / 127.0f);
          EXPECT_EQ(sums[g].whole, sum) << table->isa << " " << n;
          EXPECT_EQ(sums[g].first_half, first_half) << table->isa << " " << n;
          EXPECT_EQ(sums[g].weighted, static_cast<float>(sum) * scales[g]) << table->isa;
          const float factor = 127.0f / max;
          for (int i = begin; i < end; ++i) {
            EXPECT_EQ(values[i], std::nearbyint(x[i] * factor));
            EXPECT_LE(std::fabs(values[i] * static_cast<double>(scales[g]) - x[i]),
                      0.501 * scales[g]);
          }
        }
        for (size_t i = n; i < padded; ++i) EXPECT_EQ(values[i], 0) << table->isa << " " << n;
        EXPECT_EQ(values[padded], 99) << table->isa << " " << n;
      }
    }
  }
}

TEST(QuantizeRow, EdgesAndSameBits) {
  const auto ties = [] {  // with a maximum of 127 the factor is 1: halves go to even
    std::vector<float> x(32, 0.0f);
    x[0] = -127.0f;
    for (int i = 1; i < 32; ++i) x[i] = static_cast<float>(i) - 15.5f;
    return x;
  }();
  for (const CpuKernels* table : available_tables()) {
    std::vector<int8_t> values(32);
    float scale;
    GroupSum sum;
    table->quantize_row(ties.data(), 32, 32, values.data(), &scale, &sum);
    EXPECT_EQ(scale, 1.0f);
    EXPECT_EQ(values[0], -127);
    EXPECT_EQ(values[1], -14);  // -14.5
    EXPECT_EQ(values[2], -14);  // -13.5
    EXPECT_EQ(values[15], 0);   // -0.5
    EXPECT_EQ(values[16], 0);   // 0.5
    EXPECT_EQ(values[17], 2);   // 1.5
    const struct {
      float element;
      float scale;
    } cases[] = {
        {0.0f, 0.0f}, {1e-40f, 0.0f}, {INFINITY, INFINITY}, {-INFINITY, INFINITY}, {NAN, NAN}};
    for (const auto& special : cases) {
      std::vector<float> x(32, std::isfinite(special.element) ? 0.0f : 1.0f);
      x[17] = special.element;
      std::fill(values.begin(), values.end(), 99);
      table->quantize_row(x.data(), 32, 32, values.data(), &scale, &sum);
      EXPECT_TRUE(same_bits(scale, special.scale)) << table->isa << " " << special.element;
      EXPECT_EQ(sum.whole, 0);
      EXPECT_EQ(sum.first_half, 0);
      for (const int8_t value : values) EXPECT_EQ(value, 0);
    }
  }
  if (vector_tables().empty()) GTEST_SKIP() << "no vector table runs on this machine";
  Random random(4);
  for (int round = 0; round < 2000; ++round) {
    const int n = std::array{128, 512, 1120}[round % 3];  // four groups at once, sixteen, both
    const int groups = n / 32;
    std::vector<float> x = random.normals(n, std::ldexp(1.0f, random.integer(-120, 120)));
    // A group that is special, among others that are not.
    const float specials[] = {NAN, INFINITY, -INFINITY, 3e38f, -0.0f, 1e-44f};
    if (round % 4 == 0) x[random.integer(0, n - 1)] = specials[random.integer(0, 5)];
    if (round % 5 == 0) {
      std::fill_n(x.begin() + 32 * random.integer(0, groups - 1), 32,
                  specials[random.integer(0, 5)]);
    }
    std::vector<int8_t> a(n), b(n);
    std::vector<float> scale_a(groups), scale_b(groups);
    std::vector<GroupSum> sum_a(groups), sum_b(groups);
    portable_kernels().quantize_row(x.data(), n, 32, a.data(), scale_a.data(), sum_a.data());
    for (const CpuKernels* table : vector_tables()) {
      table->quantize_row(x.data(), n, 32, b.data(), scale_b.data(), sum_b.data());
      ASSERT_EQ(a, b) << table->isa;
      for (int g = 0; g < groups; ++g) {
        ASSERT_EQ(sum_a[g].whole, sum_b[g].whole) << table->isa;
        ASSERT_EQ(sum_a[g].first_half, sum_b[g].first_half) << table->isa;
        ASSERT_TRUE(same_bits(sum_a[g].weighted, sum_b[g].weighted)) << table->isa;
      }
      ASSERT_TRUE(same_bits(scale_a, scale_b)) << table->isa;
    }
  }
}

TEST(QuantizeWholeRow, HasOneScaleForAllGroups) {
  Random random(5);
  for (const int32_t group_size : {32, 64, 128}) {
    for (const int n : {1, 15, 33, 64, 127, 160, 517, 1000}) {
      const std::vector<float> x = random.normals(n, 2.0f);
      const auto groups = static_cast<size_t>(group_count(n, group_size));
      const auto padded = static_cast<size_t>(padded_cols(n));
      float largest = 0;
      for (const float value : x) largest = std::max(largest, std::fabs(value));
      for (const float given : {0.0f, 0.02f, 0.1f, 1e-3f}) {  // the last clips nearly all
        const float factor = given > 0 ? 1.0f / given : 127.0f / largest;
        const float scale = given > 0 ? given : largest / 127.0f;
        for (const CpuKernels* table : available_tables()) {
          SCOPED_TRACE(std::string(table->isa) + " " + std::to_string(n));
          std::vector<int8_t> values(padded + 1, 99);
          std::vector<float> scales(groups);
          std::vector<GroupSum> sums(groups);
          table->quantize_whole_row(x.data(), n, group_size, given, values.data(), scales.data(),
                                    sums.data());
          for (int i = 0; i < n; ++i) {
            ASSERT_EQ(values[i], std::clamp(std::nearbyint(x[i] * factor), -127.0f, 127.0f)) << i;
          }
          for (size_t g = 0; g < groups; ++g) {
            const int begin = static_cast<int>(g) * group_size;
            const auto sum = [&](int end) {
              return std::accumulate(values.begin() + begin, values.begin() + std::min(end, n), 0);
            };
            ASSERT_EQ(scales[g], scale);
            ASSERT_EQ(sums[g].whole, sum(begin + group_size));
            ASSERT_EQ(sums[g].first_half,
                      begin + group_size / 2 < n ? sum(begin + group_size / 2) : sums[g].whole);
            ASSERT_EQ(sums[g].weighted, static_cast<float>(sums[g].whole) * scale);
          }
          for (size_t i = n; i < padded; ++i) ASSERT_EQ(values[i], 0);
          ASSERT_EQ(values[padded], 99);
        }
      }
    }
  }
}

TEST(QuantizeWholeRow, Edges) {
  const struct {
    float element;
    float scale, given_scale;  // with nothing given, and with 0.5
  } cases[] = {{0.0f, 0.0f, 0.5f},
               {1e-40f, 0.0f, 0.5f},
               {INFINITY, INFINITY, INFINITY},
               {-INFINITY, INFINITY, INFINITY},
               {NAN, NAN, NAN},
               {-NAN, NAN, NAN}};
  for (const CpuKernels* table : available_tables()) {
    for (const auto& special : cases) {
      std::vector<float> x(70, std::isfinite(special.element) ? 0.0f : 1.0f);
      x[67] = special.element;
      for (const float given : {0.0f, 0.5f}) {
        std::vector<int8_t> values(96, 99);
        std::vector<float> scales(3);
        std::vector<GroupSum> sums(3);
        table->quantize_whole_row(x.data(), 70, 32, given, values.data(), scales.data(),
                                  sums.data());
        const float expected = given > 0 ? special.given_scale : special.scale;
        for (int g = 0; g < 3; ++g) {
          EXPECT_TRUE(same_bits(scales[g], expected)) << table->isa << " " << special.element;
          EXPECT_EQ(sums[g].whole, 0);
          EXPECT_TRUE(same_bits(sums[g].weighted, 0.0f * expected));
        }
        for (const int8_t value : values) EXPECT_EQ(value, 0);
      }
    }
    // A number beyond what the scale given reaches, however far.
    const std::vector<float> far = {3e38f, -3e38f, 63.5f, -63.75f, 0.25f, 0.75f};
    std::vector<int8_t> values(32);
    float scale;
    GroupSum sum;
    table->quantize_whole_row(far.data(), 6, 32, 0.5f, values.data(), &scale, &sum);
    values.resize(6);
    EXPECT_EQ(values, (std::vector<int8_t>{127, -127, 127, -127, 0, 2})) << table->isa;
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
