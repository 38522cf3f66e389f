// SPDX-License-Identifier: Apache-2.0
// Sums into the residual stream.
#include "kernels/cuda/combine/combine.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

TEST(CudaCombine, AScaledRowHasThePortableBits) {
  Random random(1);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    emulator::set_seed(seed);
    for (const int64_t n : {1, 3, 4, 5, 37, 1023, 1024, 1025, 1100}) {
      const auto x = random.normals(static_cast<size_t>(2 * n));
      const auto before = random.normals(static_cast<size_t>(2 * n));
      std::vector<float> expected = before;
      portable_kernels().add_scaled(x.data(), 0.37f, 2 * n, expected.data());
      const DeviceArray<float> input(x);
      DeviceArray<float> residual(before);
      Addend addend{.kind = Addend::Kind::kScaled, .multiplier = 0.37f, .x = input.data()};
      ASSERT_TRUE(ok(add_to_residual(addend, 2, n, residual.data(), nullptr)));
      EXPECT_TRUE(same_bits(residual.to_vector(), expected)) << "n " << n;
      std::vector<double> reference(before.begin(), before.end());
      for (size_t i = 0; i < reference.size(); ++i) reference[i] += double{0.37f} * x[i];
      EXPECT_LT(relative_distance(residual.to_vector(), reference), 1e-6);
    }
  }
}

// Slots in the order that the grouped products left them, NaN rows between them.
TEST(CudaCombine, ExpertsHaveThePortableBits) {
  Random random(2);
  for (const int64_t n : {1, 6, 64, 1027}) {
    for (const int32_t k : {1, 3, 8}) {
      for (const int shared_kind : {0, 1, 2}) {
        const int32_t tokens = 3;
        const int32_t rows = tokens * k + 5;
        emulator::set_seed(static_cast<uint64_t>(n + k));
        const std::vector<int32_t> places = random.permutation(rows);
        DeviceArray<int32_t> slot_rows(static_cast<size_t>(tokens * k));
        DeviceArray<float> slots(static_cast<size_t>(rows * n));
        const DeviceArray<float> weights(random.normals(static_cast<size_t>(tokens * k)));
        const DeviceArray<float> shared(random.normals(static_cast<size_t>(tokens * n)));
        const DeviceArray<float> gate(random.normals(tokens));
        DeviceArray<float> shared_weights(tokens);
        const auto before = random.normals(static_cast<size_t>(tokens * n));
        DeviceArray<float> residual(before);
        std::vector<float> expected = before;
        std::vector<double> reference(before.begin(), before.end());
        for (int32_t token = 0; token < tokens; ++token) {
          const auto own = random.normals(static_cast<size_t>(k * n));
          for (int32_t slot = 0; slot < k; ++slot) {
            const int32_t row = places[static_cast<size_t>(token * k + slot)];
            slot_rows[static_cast<size_t>(token * k + slot)] = row;
            std::copy_n(own.begin() + slot * n, n, slots.data() + row * n);
          }
          const float weight = shared_kind == 2
                                   ? portable_kernels().sigmoid(gate[static_cast<size_t>(token)])
                                   : 1.0f;
          portable_kernels().combine(own.data(), n, weights.data() + token * k, k,
                                     shared_kind != 0 ? shared.data() + token * n : nullptr, weight,
                                     1.5f, n, expected.data() + token * n);
          for (int64_t i = 0; i < n; ++i) {
            double sum =
                shared_kind != 0 ? double{weight} * shared[static_cast<size_t>(token * n + i)] : 0;
            for (int32_t slot = 0; slot < k; ++slot) {
              sum += double{weights[static_cast<size_t>(token * k + slot)]} *
                     own[static_cast<size_t>(slot * n + i)];
            }
            reference[static_cast<size_t>(token * n + i)] += 1.5 * sum;
          }
        }
        Addend addend{.kind = Addend::Kind::kExperts,
                      .multiplier = 1.5f,
                      .slots = slots.data(),
                      .slot_rows = slot_rows.data(),
                      .weights = weights.data(),
                      .top_k = k};
        if (shared_kind != 0) addend.shared = shared.data();
        if (shared_kind == 2) {
          addend.shared_gate = gate.data();
          addend.shared_weights = shared_weights.data();
        }
        ASSERT_TRUE(ok(add_to_residual(addend, tokens, n, residual.data(), nullptr)));
        EXPECT_TRUE(same_bits(residual.to_vector(), expected)) << "n " << n << " k " << k;
        EXPECT_LT(relative_distance(residual.to_vector(), reference), 1e-6);
        if (shared_kind == 2) {
          EXPECT_TRUE(same_bits(shared_weights[1], portable_kernels().sigmoid(gate[1])));
        }
      }
    }
  }
}

TEST(CudaCombine, RefusesWhatItCannotDo) {
  float x = 0;
  Addend addend{.kind = Addend::Kind::kScaled, .x = &x};
  EXPECT_EQ(add_to_residual(addend, 0, 1, &x, nullptr).code, kInvalidArguments);
  addend.x = nullptr;
  EXPECT_EQ(add_to_residual(addend, 1, 1, &x, nullptr).code, kInvalidArguments);
  EXPECT_EQ(add_to_residual({}, 1, 1, &x, nullptr).code, kInvalidArguments);
  addend.kind = Addend::Kind::kExperts;
  EXPECT_EQ(add_to_residual(addend, 1, 1, &x, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
