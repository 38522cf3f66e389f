// SPDX-License-Identifier: Apache-2.0
// The choice of experts and the grouping of tokens by expert.
#include "kernels/cuda/router/router.h"

#include <numeric>

#include "tests/cuda/routes.h"

namespace vitrine::kernels::cuda::testing {
namespace {

void expect_portable(const std::vector<float>& logits, int32_t tokens, int32_t n, int32_t k,
                     bool normalize, bool after, uint64_t seed) {
  emulator::set_seed(seed);
  const DeviceArray<float> input(logits);
  Routes routes(tokens, n, k);
  Router router = routes.ask(input, n, k);
  router.normalize = normalize;
  router.softmax_after_topk = after;
  ASSERT_TRUE(ok(router_top_k(router, tokens, nullptr)));
  for (int32_t token = 0; token < tokens; ++token) {
    std::vector<float> probs(static_cast<size_t>(n)), weights(static_cast<size_t>(k));
    std::vector<int32_t> ids(static_cast<size_t>(k));
    portable_kernels().router_top_k(logits.data() + token * n, n, k, normalize, after, probs.data(),
                                    ids.data(), weights.data());
    const int32_t* record = routes.records.data() + token * routes.stride;
    for (int32_t slot = 0; slot < k; ++slot) {
      const auto at = static_cast<size_t>(token * k + slot), s = static_cast<size_t>(slot);
      ASSERT_EQ(routes.ids[at], ids[s]) << "n " << n << " k " << k << " slot " << slot;
      ASSERT_TRUE(same_bits(routes.weights[at], weights[s]));
      ASSERT_EQ(record[1 + slot], ids[s]);
      ASSERT_TRUE(same_bits(std::bit_cast<float>(record[1 + k + slot]), weights[s]));
    }
    for (int32_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(token * n + i);
      ASSERT_TRUE(same_bits(routes.probs[at], probs[static_cast<size_t>(i)])) << "expert " << i;
      ASSERT_TRUE(same_bits(std::bit_cast<float>(record[2 + 2 * k + i]), routes.probs[at]));
    }
    for (const int64_t untouched : {int64_t{0}, int64_t{1 + 2 * k}, routes.stride - 1}) {
      ASSERT_EQ(record[untouched], -1);
    }
  }
}

TEST(CudaRouter, HasThePortableBits) {
  Random random(7);
  uint64_t seed = 0;
  for (const int32_t n : {1, 2, 7, 16, 33, 60, 128, 300}) {
    for (const int32_t k : {1, 2, 6, 8, 32}) {
      if (k > n) continue;
      for (const bool normalize : {false, true}) {
        for (const bool after : {false, true}) {
          auto logits = random.normals(static_cast<size_t>(5 * n), 2.0f);
          for (size_t i = 0; i < logits.size(); i += 3) logits[i] = std::round(logits[i]);  // ties
          expect_portable(logits, 5, n, k, normalize, after, ++seed);
        }
      }
    }
  }
}

TEST(CudaRouter, ForcedRoutesHaveTheWeightsOfTheCpu) {
  Random random(8);
  const int32_t tokens = 5, n = 33, k = 4, stride = 11;
  for (const bool normalize : {false, true}) {
    for (const bool after : {false, true}) {
      const auto logits = random.normals(static_cast<size_t>(tokens * n), 2.0f);
      const DeviceArray<float> input(logits);
      // Odd tokens are forced; the last slot has a weight of its own.
      DeviceArray<int32_t> forced(static_cast<size_t>(tokens * stride));
      DeviceArray<float> given(static_cast<size_t>(tokens * stride));
      for (int32_t token = 1; token < tokens; token += 2) {
        for (int32_t slot = 0; slot < k; ++slot) {
          const auto at = static_cast<size_t>(token * stride + slot);
          forced[at] = (token + 9 * slot) % n;
          given[at] = slot == k - 1 ? 0.25f * static_cast<float>(token - 1) : -1.0f;
        }
      }
      Routes routes(tokens, n, k);
      Router router = routes.ask(input, n, k);
      router.normalize = normalize;
      router.softmax_after_topk = after;
      router.forced_ids = forced.data();
      router.forced_weights = given.data();
      router.forced_stride = stride;
      ASSERT_TRUE(ok(router_top_k(router, tokens, nullptr)));
      for (int32_t token = 0; token < tokens; ++token) {
        const float* row = logits.data() + token * n;
        std::vector<float> probs(static_cast<size_t>(n)), weights(static_cast<size_t>(k));
        std::vector<int32_t> ids(static_cast<size_t>(k));
        portable_kernels().router_top_k(row, n, k, normalize, after, probs.data(), ids.data(),
                                        weights.data());
        if (token % 2 != 0) {
          std::copy_n(forced.data() + token * stride, k, ids.data());
          portable_kernels().route_weights(row, probs.data(), ids.data(), k, normalize, after,
                                           weights.data());
          weights.back() = 0.25f * static_cast<float>(token - 1);
        }
        for (int32_t slot = 0; slot < k; ++slot) {
          const auto at = static_cast<size_t>(token * k + slot), s = static_cast<size_t>(slot);
          EXPECT_EQ(routes.ids[at], ids[s]);
          EXPECT_TRUE(same_bits(routes.weights[at], weights[s])) << token << " " << slot;
        }
      }
    }
  }
}

TEST(CudaRouter, LogitsThatAreNoNumbers) {
  for (const float odd : {NAN, INFINITY, -INFINITY, 200.0f, -200.0f}) {
    Random random(8);
    auto logits = random.normals(2 * 40);
    logits[40 + 13] = odd;
    for (const bool after : {false, true}) expect_portable(logits, 2, 40, 4, true, after, 1);
  }
  expect_portable(std::vector<float>(40, -INFINITY), 1, 40, 4, true, false, 2);
  expect_portable(std::vector<float>(40, 0.5f), 1, 40, 32, true, false, 3);
}

TEST(CudaRouter, AgainstDouble) {
  Random random(9);
  const int32_t n = 96, k = 6;
  const auto logits = random.normals(n);
  const DeviceArray<float> input(logits);
  Routes routes(1, n, k);
  Router router = routes.ask(input, n, k);
  router.normalize = true;
  ASSERT_TRUE(ok(router_top_k(router, 1, nullptr)));
  std::vector<double> probs;
  for (const float logit : logits) probs.push_back(std::exp(double{logit}));
  const double sum = std::accumulate(probs.begin(), probs.end(), 0.0);
  for (double& prob : probs) prob /= sum;
  EXPECT_LT(relative_distance(routes.probs.to_vector(), probs), 1e-6);
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(),
                           [&](int32_t i) { return probs[static_cast<size_t>(i)]; });
  double chosen = 0;
  for (int32_t slot = 0; slot < k; ++slot) chosen += probs[static_cast<size_t>(order[slot])];
  for (size_t slot = 0; slot < k; ++slot) {
    EXPECT_EQ(routes.ids[slot], order[slot]);
    EXPECT_NEAR(routes.weights[slot], probs[static_cast<size_t>(order[slot])] / chosen, 1e-6);
  }
}

TEST(CudaRouter, RefusesWhatItCannotDo) {
  Router router{.num_experts = 8, .top_k = 9};
  EXPECT_EQ(router_top_k(router, 1, nullptr).code, kInvalidArguments);
  router = {.num_experts = 2000, .top_k = 1};
  EXPECT_EQ(router_top_k(router, 1, nullptr).code, kInvalidArguments);
  router = {.num_experts = 8, .top_k = 2};
  EXPECT_EQ(router_top_k(router, 0, nullptr).code, kInvalidArguments);
}

void expect_grouped(const std::vector<int32_t>& ids, int32_t tokens, int32_t experts, int32_t k,
                    int32_t tile_rows, uint64_t seed) {
  emulator::set_seed(seed);
  const auto tiles = static_cast<size_t>(most_tiles(tokens, k, experts, tile_rows));
  const DeviceArray<int32_t> input(ids);
  DeviceArray<int32_t> counts(static_cast<size_t>(experts)), offsets(counts.size() + 1);
  DeviceArray<int32_t> row_routes(tiles * static_cast<size_t>(tile_rows)), slot_rows(ids.size());
  DeviceArray<int32_t> tile_experts(tiles), num_tiles(1);
  const Grouping grouping{experts,
                          k,
                          tile_rows,
                          input.data(),
                          counts.data(),
                          offsets.data(),
                          row_routes.data(),
                          slot_rows.data(),
                          tile_experts.data(),
                          num_tiles.data()};
  ASSERT_TRUE(ok(group_by_expert(grouping, tokens, nullptr)));
  std::vector<int32_t> rows, tile_of;
  for (int32_t expert = 0; expert < experts; ++expert) {
    ASSERT_EQ(offsets[static_cast<size_t>(expert)], static_cast<int32_t>(rows.size()));
    int32_t count = 0;
    for (size_t route = 0; route < ids.size(); ++route) {
      if (ids[route] != expert) continue;
      ++count;
      ASSERT_EQ(slot_rows[route], static_cast<int32_t>(rows.size()));
      rows.push_back(static_cast<int32_t>(route));
    }
    ASSERT_EQ(counts[static_cast<size_t>(expert)], count);
    while (rows.size() % static_cast<size_t>(tile_rows) != 0) rows.push_back(-1);
    tile_of.resize(rows.size() / static_cast<size_t>(tile_rows), expert);
  }
  ASSERT_EQ(offsets[static_cast<size_t>(experts)], static_cast<int32_t>(rows.size()));
  ASSERT_EQ(num_tiles[0], static_cast<int32_t>(tile_of.size()));
  ASSERT_LE(tile_of.size(), tiles);
  rows.resize(row_routes.size(), -1);
  tile_of.resize(tiles, -1);
  EXPECT_EQ(row_routes.to_vector(), rows);
  EXPECT_EQ(tile_experts.to_vector(), tile_of);
}

TEST(CudaGrouping, TheRouterGroupsOneTokenTheSame) {
  Random random(11);
  for (const auto& [n, k] : std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {8, 2}, {128, 8}}) {
    const DeviceArray<float> logits(random.normals(static_cast<size_t>(n)));
    Routes routes(1, n, k);
    const auto slots = static_cast<size_t>(k), rows = slots * kLeastTileRows;
    struct Found {
      Found(size_t k, size_t n)
          : counts(n),
            offsets(n + 1),
            row_routes(2 * k * kLeastTileRows),
            slot_rows(k),
            tile_experts(2 * k),
            num_tiles(1) {}
      DeviceArray<int32_t> counts, offsets, row_routes, slot_rows, tile_experts, num_tiles;
    } own(slots, static_cast<size_t>(n)), other(slots, static_cast<size_t>(n));
    const auto ask = [&](Found& to) {
      return Grouping{n,
                      k,
                      kLeastTileRows,
                      routes.ids.data(),
                      to.counts.data(),
                      to.offsets.data(),
                      to.row_routes.data(),
                      to.slot_rows.data(),
                      to.tile_experts.data(),
                      to.num_tiles.data()};
    };
    Router router = routes.ask(logits, n, k);
    router.grouping = ask(own);
    ASSERT_TRUE(ok(router_top_k(router, 1, nullptr)));
    ASSERT_TRUE(ok(group_by_expert(ask(other), 1, nullptr)));
    const auto first = [](const DeviceArray<int32_t>& all, size_t count) {
      std::vector<int32_t> values = all.to_vector();
      values.resize(count);
      return values;
    };
    EXPECT_EQ(own.num_tiles[0], k);
    EXPECT_EQ(other.num_tiles[0], k);
    EXPECT_EQ(first(own.tile_experts, slots), first(other.tile_experts, slots));
    EXPECT_EQ(first(own.row_routes, rows), first(other.row_routes, rows));
    EXPECT_EQ(own.slot_rows.to_vector(), other.slot_rows.to_vector());
  }
}

TEST(CudaGrouping, RoutesStandByExpertInTheirOrder) {
  Random random(10);
  uint64_t seed = 0;
  for (const int32_t tokens : {1, 5, 64, 300, 1500}) {
    for (const int32_t experts : {1, 7, 128, 200}) {
      for (const int32_t tile_rows : {1, 16, 24}) {
        const int32_t k = std::min(3, experts);
        std::vector<int32_t> ids;
        for (int32_t token = 0; token < tokens; ++token) {
          const auto order = random.permutation(experts);
          // Some experts get more than others, some none.
          for (int32_t slot = 0; slot < k; ++slot) ids.push_back(order[static_cast<size_t>(slot)]);
        }
        expect_grouped(ids, tokens, experts, k, tile_rows, ++seed);
      }
    }
  }
  expect_grouped(std::vector<int32_t>(600, 4), 600, 9, 1, 16, 1);  // all to one
}

TEST(CudaGrouping, RefusesWhatItCannotDo) {
  Grouping grouping{.num_experts = 2000, .top_k = 1, .tile_rows = 16};
  EXPECT_EQ(group_by_expert(grouping, 1, nullptr).code, kInvalidArguments);
  grouping = {.num_experts = 8, .top_k = 1, .tile_rows = 0};
  EXPECT_EQ(group_by_expert(grouping, 1, nullptr).code, kInvalidArguments);
  grouping = {.num_experts = 8, .top_k = 0, .tile_rows = 16};
  EXPECT_EQ(group_by_expert(grouping, 1, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
