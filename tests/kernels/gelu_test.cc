// SPDX-License-Identifier: Apache-2.0
// GELU by tanh and the soft cap: against double precision, and the same bits in every table.
#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

constexpr Gating kGelu{Gating::Kind::kGeluTanh};
const int64_t kLengths[] = {1, 7, 8, 15, 16, 17, 33, 100, 1000};
const float kSpecial[] = {0.0f,        -0.0f,    1e-40f,    -1e-40f,   0.625f, -0.625f,
                          0.62499994f, 30.0f,    -30.0f,    1e20f,     -1e20f, 3.4e38f,
                          -3.4e38f,    INFINITY, -INFINITY, float(NAN)};

double gelu(double g) {
  return 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
}

TEST(GeluTanh, AgainstDouble) {
  Random random(1);
  for (const int64_t n : kLengths) {
    const std::vector<float> gate = random.normals(n, 3.0f), up = random.normals(n, 2.0f);
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out(n);
      table->apply_gating(kGelu, gate.data(), up.data(), n, out.data());
      for (int64_t i = 0; i < n; ++i) {
        const double expected = gelu(gate[i]) * up[i];
        const double tolerance = (8 + 4 * std::fabs(gate[i]) * (1 + gate[i] * gate[i])) * kEpsilon;
        EXPECT_NEAR(out[i], expected, tolerance * std::fabs(gate[i] * up[i]))
            << table->isa << " " << gate[i];
      }
    }
  }
}

TEST(SoftCap, AgainstDouble) {
  Random random(2);
  for (const float cap : {1.5f, 30.0f}) {
    for (const int64_t n : kLengths) {
      const std::vector<float> x = random.normals(n, 2 * cap);
      for (const CpuKernels* table : available_tables()) {
        std::vector<float> out = x;
        table->soft_cap(cap, n, out.data());
        for (int64_t i = 0; i < n; ++i) {
          const double expected = cap * std::tanh(static_cast<double>(x[i]) / cap);
          EXPECT_NEAR(out[i], expected, 8 * kEpsilon * std::fabs(expected))
              << table->isa << " " << x[i];
        }
      }
    }
  }
}

TEST(SoftCap, SpecialValues) {
  for (const CpuKernels* table : available_tables()) {
    std::vector<float> x = {0.0f, -0.0f, INFINITY, -INFINITY, NAN};
    table->soft_cap(30.0f, 5, x.data());
    EXPECT_TRUE(same_bits(x, {0.0f, 0.0f, 30.0f, -30.0f, NAN})) << table->isa;
  }
}

TEST(GeluTanh, SameBitsInEveryTableAndInPlace) {
  if (vector_tables().empty()) GTEST_SKIP() << "no vector table runs on this machine";
  Random random(3);
  for (const int64_t n : kLengths) {
    std::vector<float> gate = random.normals(n, 5.0f), up = random.normals(n, 2.0f);
    for (const float special : kSpecial) {
      gate[n / 2] = special;
      std::vector<float> a(n), cap_a = gate;
      portable_kernels().apply_gating(kGelu, gate.data(), up.data(), n, a.data());
      portable_kernels().soft_cap(1.5f, n, cap_a.data());
      for (const CpuKernels* table : vector_tables()) {
        std::vector<float> b = gate, cap_b = gate;
        table->apply_gating(kGelu, b.data(), up.data(), n, b.data());
        table->soft_cap(1.5f, n, cap_b.data());
        EXPECT_TRUE(same_bits(a, b)) << table->isa << " " << special;
        EXPECT_TRUE(same_bits(cap_a, cap_b)) << table->isa << " " << special;
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
