// SPDX-License-Identifier: Apache-2.0
// What adapters add to a product.
#include "kernels/cuda/adapter/low_rank.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

struct Adapter {
  std::vector<float> a, b;
  int32_t rank;
  float scale;
};

/// y + scale * b (a x) in double.
std::vector<double> reference(const Adapter& adapter, const float* x, int64_t cols, const float* y,
                              int64_t rows) {
  std::vector<double> low(static_cast<size_t>(adapter.rank)), out(y, y + rows);
  for (size_t r = 0; r < low.size(); ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      low[r] += double{adapter.a[r * static_cast<size_t>(cols) + static_cast<size_t>(c)]} * x[c];
    }
  }
  for (size_t row = 0; row < out.size(); ++row) {
    for (size_t r = 0; r < low.size(); ++r) {
      out[row] += double{adapter.scale} * adapter.b[row * low.size() + r] * low[r];
    }
  }
  return out;
}

// Three experts, two adapters of other ranks, one of which leaves an expert alone; tokens of each
// and of none; two parts.
TEST(CudaLowRank, AgainstDoubleAndLeavesTheRestAlone) {
  const int32_t tokens = 5, per_token = 2, experts = 3, adapters = 2, max_rank = 19;
  const int64_t cols = 75, rows = 141, stride = 147;
  const std::vector<int32_t> adapter_of = {1, -1, 0, 1, 0};
  const std::vector<int32_t> chosen = {2, 0, 1, 2, 0, 1, 1, 2, 2, 0};
  for (const bool x_of_items : {false, true}) {
    for (uint64_t seed = 0; seed < kSeeds; ++seed) {
      emulator::set_seed(seed);
      Random random(static_cast<uint32_t>(31 + seed));
      std::vector<Adapter> all;
      std::vector<DeviceArray<float>> kept;
      DeviceArray<LowRankMatrix> table(static_cast<size_t>(experts * adapters));
      for (size_t i = 0; i < table.size(); ++i) {
        const int32_t rank = i == 3 ? 0 : i % 2 == 0 ? 5 : max_rank;
        all.push_back({random.normals(static_cast<size_t>(rank * cols)),
                       random.normals(static_cast<size_t>(rank * rows)), rank,
                       0.1f * static_cast<float>(i + 1)});
        table[i] = {};
        if (rank == 0) continue;
        table[i].rank = rank;
        table[i].scale = all[i].scale;
        table[i].a = kept.emplace_back(all[i].a).data();
        table[i].b = kept.emplace_back(all[i].b).data();
      }
      const DeviceArray<float> x(
          random.normals(static_cast<size_t>(tokens * per_token * (cols + 2))));
      const DeviceArray<int32_t> device_adapters(adapter_of), device_experts(chosen);
      const auto before = random.normals(static_cast<size_t>(tokens * per_token * stride));
      DeviceArray<float> out[2] = {DeviceArray<float>(before), DeviceArray<float>(before)};
      DeviceArray<float> low[2] = {DeviceArray<float>(tokens * per_token * max_rank),
                                   DeviceArray<float>(tokens * per_token * max_rank)};
      LowRank low_rank;
      low_rank.num_parts = 2;
      for (int i = 0; i < 2; ++i) {
        // The second part is of fewer rows.
        low_rank.parts[i] = {table.data(), low[i].data(), out[i].data(), stride, rows - 60 * i};
      }
      low_rank.adapters = adapters;
      low_rank.max_rank = max_rank;
      low_rank.adapter_of = device_adapters.data();
      low_rank.per_token = per_token;
      low_rank.experts = device_experts.data();
      low_rank.x = x.data();
      low_rank.x_stride = cols + 2;
      low_rank.cols = cols;
      low_rank.x_of_items = x_of_items;
      ASSERT_TRUE(ok(add_low_rank(low_rank, tokens, nullptr)));
      for (int32_t item = 0; item < tokens * per_token; ++item) {
        const int32_t adapter = adapter_of[static_cast<size_t>(item / per_token)];
        const float* own = x.data() + (x_of_items ? item : item / per_token) * (cols + 2);
        for (int part = 0; part < 2; ++part) {
          const int64_t count = rows - 60 * part;
          const float* y = before.data() + item * stride;
          const float* found = out[part].data() + item * stride;
          const int64_t changed =
              adapter < 0 || all[static_cast<size_t>(chosen[static_cast<size_t>(item)] * adapters +
                                                     adapter)]
                                     .rank == 0
                  ? 0
                  : count;
          for (int64_t i = changed; i < stride; ++i) ASSERT_TRUE(same_bits(found[i], y[i]));
          if (changed == 0) continue;
          const Adapter& of =
              all[static_cast<size_t>(chosen[static_cast<size_t>(item)] * adapters + adapter)];
          EXPECT_LT(relative_distance({found, static_cast<size_t>(count)},
                                      reference(of, own, cols, y, count)),
                    1e-6);
        }
      }
    }
  }
}

TEST(CudaLowRank, RefusesWhatItCannotDo) {
  LowRank low_rank;
  EXPECT_EQ(add_low_rank(low_rank, 1, nullptr).code, kInvalidArguments);
  low_rank.num_parts = 1;
  EXPECT_EQ(add_low_rank(low_rank, 1, nullptr).code, kInvalidArguments);
  low_rank.max_rank = 4;
  EXPECT_EQ(add_low_rank(low_rank, 0, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
