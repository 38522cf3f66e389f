// SPDX-License-Identifier: Apache-2.0
// The exp of every table: its error over the whole float range, and the same bits everywhere.
#include "kernel_test_util.h"
#include "kernels/cpu/portable/math.h"

namespace vitrine::kernels::testing {
namespace {

using portable::exp_float;

/// The distance between neighbouring floats at `value`.
double ulp_at(double value) {
  const int exponent = value < 0x1p-126 ? -126 : std::ilogb(value);
  return std::ldexp(1.0, exponent - 23);
}

TEST(Exp, WithinOneUlpOverTheWholeRange) {
  double worst = 0;
  uint32_t worst_bits = 0;
  // Every 409th float of either sign: 409 is odd, so that all mantissa patterns come up.
  for (uint64_t bits = 0; bits <= 0xffffffffu; bits += 409) {
    const float x = float_from_bits(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    const float got = exp_float(x);
    const double expected = std::exp(static_cast<double>(x));
    if (expected >= 0x1.ffffffp+127) {
      ASSERT_TRUE(std::isinf(got)) << x;
      continue;
    }
    const double error = std::fabs(got - expected) / ulp_at(expected);
    if (error > worst) {
      worst = error;
      worst_bits = static_cast<uint32_t>(bits);
    }
  }
  EXPECT_LT(worst, 1.0) << "at " << float_from_bits(worst_bits);
  RecordProperty("worst_ulp", std::to_string(worst));
}

TEST(Exp, SpecialValues) {
  EXPECT_EQ(exp_float(0.0f), 1.0f);
  EXPECT_EQ(exp_float(-0.0f), 1.0f);
  EXPECT_TRUE(same_bits(exp_float(-INFINITY), 0.0f));
  EXPECT_TRUE(same_bits(exp_float(-104.5f), 0.0f));
  EXPECT_EQ(exp_float(-103.0f), 0x1p-149f);
  EXPECT_EQ(exp_float(INFINITY), INFINITY);
  EXPECT_EQ(exp_float(88.73f), INFINITY);
  EXPECT_LT(exp_float(88.72f), INFINITY);
  EXPECT_TRUE(std::isnan(exp_float(NAN)));
}

TEST(Exp, NeverDecreases) {
  float previous = 0.0f;
  for (float x = -104.0f; x < 88.7f; x = std::nextafter(x, 100.0f) + 1e-4f) {
    const float value = exp_float(x);
    ASSERT_GE(value, previous) << x;
    previous = value;
  }
}

TEST(ExpStatistics, CloseToExpBelowZero) {
  using portable::exp_statistics;
  double worst = 0;
  float worst_x = 0;
  for (uint64_t bits = 0x80000000u; bits <= 0xffffffffu; bits += 409) {
    const float x = float_from_bits(static_cast<uint32_t>(bits));
    if (std::isnan(x)) continue;
    const float got = exp_statistics(x);
    if (x < kExpStatisticsLow) {
      ASSERT_TRUE(same_bits(got, 0.0f)) << x;
      continue;
    }
    const double expected = std::exp(static_cast<double>(x));
    // log2(e) is rounded: an error that grows with |x|, where the term hardly counts.
    const double error = std::fabs(got / expected - 1) / (4 + std::fabs(x));
    if (error > worst) {
      worst = error;
      worst_x = x;
    }
  }
  EXPECT_LT(worst, 0x1p-24) << "at " << worst_x;
  EXPECT_EQ(exp_statistics(0.0f), 1.0f);
  EXPECT_EQ(exp_statistics(-0.0f), 1.0f);
  EXPECT_GT(exp_statistics(kExpStatisticsLow), 0x1.4p-126f);
  EXPECT_TRUE(std::isnan(exp_statistics(NAN)));
}

/// exp of negative arguments, seen through the router: with a largest logit of 0, the others'
/// probabilities are exp(x) / sum. Positive arguments are seen through sigmoid.
TEST(Exp, SameBitsInEveryTable) {
  if (vector_tables().empty()) GTEST_SKIP() << "no vector table runs on this machine";
  const CpuKernels& a = portable_kernels();
  constexpr int kCount = 512;
  std::vector<float> logits(kCount), probs_a(kCount), probs_b(kCount), weights(kCount);
  std::vector<int32_t> ids(kCount);
  uint32_t bits = 0x80000000u;  // -0, then more negative, past -inf into the NaNs
  while (bits < 0xff900000u) {
    // The sum stays near 1 only if one exponential at a time is large; small ones keep their bits.
    logits[0] = 0.0f;
    for (int i = 1; i < kCount; ++i, bits += 2003) logits[i] = float_from_bits(bits);
    a.router_top_k(logits.data(), kCount, 1, false, false, probs_a.data(), ids.data(),
                   weights.data());
    for (const CpuKernels* b : vector_tables()) {
      b->router_top_k(logits.data(), kCount, 1, false, false, probs_b.data(), ids.data(),
                      weights.data());
      ASSERT_TRUE(same_bits(probs_a, probs_b)) << b->isa;
    }
  }
  for (uint64_t x = 0; x <= 0xffffffffu; x += 10007) {
    const float value = float_from_bits(static_cast<uint32_t>(x));
    const float expected = a.sigmoid(value);
    for (const CpuKernels* b : vector_tables()) {
      ASSERT_TRUE(same_bits(expected, b->sigmoid(value))) << b->isa << " " << value;
    }
  }
}

TEST(Sigmoid, AgainstDouble) {
  for (const CpuKernels* table : available_tables()) {
    for (float x = -80.0f; x < 80.0f; x += 0.37f) {
      const double expected = 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
      EXPECT_NEAR(table->sigmoid(x), expected, 5 * kEpsilon * expected) << table->isa << " " << x;
    }
    EXPECT_EQ(table->sigmoid(INFINITY), 1.0f);
    EXPECT_EQ(table->sigmoid(-INFINITY), 0.0f);
    EXPECT_TRUE(std::isnan(table->sigmoid(NAN)));
  }
}

TEST(Tables, NamedAndComplete) {
  EXPECT_STREQ(portable_kernels().isa, "portable");
  const std::pair<const CpuKernels*, const char*> named[] = {{avx512_amx_kernels(), "avx512_amx"},
                                                             {avx512_kernels(), "avx512"},
                                                             {avx2_vnni_kernels(), "avx2_vnni"},
                                                             {avx2_kernels(), "avx2"}};
  size_t count = 0;
  for (const auto& [table, name] : named) {
    if (table == nullptr) continue;
    EXPECT_STREQ(table->isa, name);
    EXPECT_EQ(table, available_tables()[count++]);
  }
  EXPECT_EQ(vector_tables().size(), count);
  EXPECT_EQ(available_tables().back(), &portable_kernels());
  for (const CpuKernels* table : available_tables()) {
    constexpr size_t kPointers = sizeof(CpuKernels) / sizeof(void*);
    const void* pointers[kPointers];
    memcpy(pointers, table, sizeof(pointers));
    for (size_t i = 0; i < kPointers; ++i) EXPECT_NE(pointers[i], nullptr) << "entry " << i;
  }
}

TEST(Half, EveryValueSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000u; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(widen_f16(half))) {
      EXPECT_EQ(narrow_f16(widen_f16(half)), half);
    }
    if (!std::isnan(widen_bf16(half))) {
      EXPECT_EQ(narrow_bf16(widen_bf16(half)), half);
    }
  }
  EXPECT_EQ(narrow_f16(65520.0f), 0x7c00);  // halfway to 65536: to infinity
  EXPECT_EQ(narrow_f16(65519.0f), 0x7bff);
  EXPECT_EQ(narrow_f16(0x1p-25f), 0);  // halfway between 0 and the smallest: to even
  EXPECT_EQ(narrow_f16(0x1.8p-25f), 1);
  EXPECT_EQ(narrow_f16(1.0f + 0x1p-11f), 0x3c00);
  EXPECT_EQ(narrow_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_TRUE(std::isnan(widen_f16(narrow_f16(NAN))));
  EXPECT_TRUE(std::isnan(widen_bf16(narrow_bf16(NAN))));
}

// scripts/gpu_session reads this of a log.
TEST(SameBits, NamesTheFirstDifferenceAndBothBits) {
  const float third = 1.0F / 3;
  EXPECT_TRUE(same_bits(std::vector<float>{1, third}, {1, third}));
  const auto found = same_bits(std::vector<float>{1, third, 5}, {1, -0.0F, 6});
  EXPECT_FALSE(found);
  EXPECT_STREQ(found.message(), "element 1: 0.333333343 (0x3eaaaaab) and -0 (0x80000000)");
}

}  // namespace
}  // namespace vitrine::kernels::testing
