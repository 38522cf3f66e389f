// SPDX-License-Identifier: Apache-2.0
// The choice of experts by scores, corrections and groups, against a plain one by sorting.
#include <numeric>

#include "tests/cuda/routes.h"

namespace vitrine::kernels::cuda::testing {
namespace {

struct Chosen {
  std::vector<float> scores, keys, weights;  // keys: of all experts, as scores
  std::vector<int32_t> ids;
};

/// Numbers 0 … count - 1, those of larger `of` first, equal ones in ascending order.
std::vector<int32_t> descending(const std::vector<float>& of) {
  std::vector<int32_t> order(of.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(),
                           [&](int32_t i) { return of[static_cast<size_t>(i)]; });
  return order;
}

struct Choice {
  int32_t n, k, groups, chosen_groups;
  bool normalize, has_correction;
  float sum_epsilon, scale;

  RouterScores scores(const float* correction) const {
    return {has_correction ? correction : nullptr, groups, chosen_groups, sum_epsilon, scale};
  }
  /// The weights of those experts.
  std::vector<float> weigh(const std::vector<float>& of, const std::vector<int32_t>& ids) const {
    std::vector<float> weights;
    float sum = 0;
    for (const int32_t id : ids) {
      weights.push_back(of[static_cast<size_t>(id)]);
      sum = sum + weights.back();
    }
    sum = sum + sum_epsilon;
    for (float& weight : weights) weight = (normalize ? weight / sum : weight) * scale;
    return weights;
  }
  Chosen choose(const float* logits, const std::vector<float>& correction) const {
    Chosen found;
    std::vector<float>& keys = found.keys;
    for (int32_t i = 0; i < n; ++i) {
      found.scores.push_back(portable_kernels().sigmoid(logits[i]));
      keys.push_back(has_correction ? found.scores.back() + correction[static_cast<size_t>(i)]
                                    : found.scores.back());
    }
    const int32_t size = n / groups;
    std::vector<float> worth;
    for (int32_t group = 0; group < groups && chosen_groups < groups; ++group) {
      std::vector<float> of_group(keys.begin() + group * size, keys.begin() + (group + 1) * size);
      std::ranges::sort(of_group, std::greater());
      worth.push_back(of_group[0] + of_group[1]);
    }
    std::vector<int32_t> best_groups = descending(worth);
    if (chosen_groups < groups) best_groups.resize(static_cast<size_t>(chosen_groups));
    for (const int32_t id : descending(keys)) {
      const bool is_in = best_groups.empty() || std::ranges::count(best_groups, id / size) > 0;
      if (is_in && std::ssize(found.ids) < k) found.ids.push_back(id);
    }
    found.weights = weigh(found.scores, found.ids);
    return found;
  }
};

void expect_token(Routes& routes, const Choice& choice, int32_t token, const Chosen& expected) {
  const int32_t* record = routes.records.data() + token * routes.stride;
  for (int32_t slot = 0; slot < choice.k; ++slot) {
    const auto at = static_cast<size_t>(token * choice.k + slot), s = static_cast<size_t>(slot);
    ASSERT_EQ(routes.ids[at], expected.ids[s])
        << "n " << choice.n << " k " << choice.k << " groups " << choice.groups << " slot " << slot;
    ASSERT_TRUE(same_bits(routes.weights[at], expected.weights[s]));
    ASSERT_EQ(record[1 + slot], expected.ids[s]);
    ASSERT_TRUE(same_bits(std::bit_cast<float>(record[1 + choice.k + slot]), expected.weights[s]));
    const auto id = static_cast<size_t>(expected.ids[s]);
    const int32_t* scores = record + 2 + 2 * choice.k + choice.n;
    ASSERT_TRUE(same_bits(std::bit_cast<float>(scores[slot]), expected.scores[id]));
    ASSERT_TRUE(same_bits(std::bit_cast<float>(scores[choice.k + slot]), expected.keys[id]));
  }
  for (int32_t i = 0; i < choice.n; ++i) {
    const auto at = static_cast<size_t>(token * choice.n + i);
    ASSERT_TRUE(same_bits(routes.probs[at], expected.scores[static_cast<size_t>(i)]));
    ASSERT_TRUE(same_bits(std::bit_cast<float>(record[2 + 2 * choice.k + i]), routes.probs[at]));
  }
  for (const int64_t untouched : {int64_t{0}, int64_t{1 + 2 * choice.k}, routes.stride - 1}) {
    ASSERT_EQ(record[untouched], -1);
  }
}

void expect_sorted(const Choice& choice, const std::vector<float>& logits,
                   const std::vector<float>& correction, uint64_t seed) {
  emulator::set_seed(seed);
  const auto tokens = static_cast<int32_t>(logits.size()) / choice.n;
  const DeviceArray<float> input(logits), corrections(correction);
  Routes routes(tokens, choice.n, choice.k);
  Router router = routes.ask(input, choice.n, choice.k);
  router.normalize = choice.normalize;
  ASSERT_TRUE(ok(scored_router_top_k(router, choice.scores(corrections.data()), tokens, nullptr)));
  for (int32_t token = 0; token < tokens; ++token) {
    expect_token(routes, choice, token,
                 choice.choose(logits.data() + token * choice.n, correction));
  }
}

TEST(CudaScoredRouter, ChoosesAsSortingDoes) {
  Random random(17);
  uint64_t seed = 0;
  struct Sizes {
    int32_t n, groups, chosen_groups;
  };
  for (const Sizes& of : {Sizes{1, 1, 1},
                          {7, 1, 1},
                          {16, 4, 2},
                          {16, 4, 4},
                          {60, 1, 1},
                          {128, 64, 40},
                          {160, 8, 3},
                          {256, 8, 4},
                          {1024, 32, 31}}) {
    for (const int32_t k : {1, 4, 6, 32}) {
      if (k > of.n / of.groups * of.chosen_groups) continue;
      for (const bool normalize : {false, true}) {
        for (const bool has_correction : {false, true}) {
          auto logits = random.normals(static_cast<size_t>(5 * of.n), 2.0f);
          auto correction = random.normals(static_cast<size_t>(of.n), 0.3f);
          // Ties of experts and of groups.
          for (size_t i = 0; i < logits.size(); i += 2) logits[i] = std::round(logits[i]);
          for (float& x : correction) x = std::round(4 * x) / 4;
          const Choice choice{of.n,           k,      of.groups, of.chosen_groups, normalize,
                              has_correction, 1e-20f, 1.5f};
          expect_sorted(choice, logits, correction, ++seed);
        }
      }
    }
  }
}

TEST(CudaScoredRouter, TiesOfAllGoToTheFirst) {
  const Choice choice{32, 6, 8, 2, true, true, 1e-20f, 2.5f};
  expect_sorted(choice, std::vector<float>(64, 0.5f), std::vector<float>(32, -1.0f), 1);
  expect_sorted(choice, std::vector<float>(32, -INFINITY), std::vector<float>(32, 0.25f), 2);
}

TEST(CudaScoredRouter, CorrectionsMayBeInfinite) {
  Random random(18);
  const Choice choice{20, 5, 1, 1, true, true, 0.0f, 1.0f};
  auto correction = random.normals(20);
  correction[3] = correction[11] = INFINITY;
  for (const size_t i : {0, 7, 8, 19}) correction[i] = -INFINITY;
  expect_sorted(choice, random.normals(40), correction, 3);
}

TEST(CudaScoredRouter, LogitsThatAreNoNumbers) {
  const Choice choice{24, 4, 4, 2, true, true, 1e-20f, 1.5f};
  Random random(19);
  const auto correction = random.normals(24);
  for (const float odd : {NAN, INFINITY}) {
    auto logits = random.normals(48);
    logits[24 + 13] = odd;
    const DeviceArray<float> input(logits), corrections(correction);
    Routes routes(2, choice.n, choice.k);
    Router router = routes.ask(input, choice.n, choice.k);
    router.normalize = true;
    ASSERT_TRUE(ok(scored_router_top_k(router, choice.scores(corrections.data()), 2, nullptr)));
    expect_token(routes, choice, 0, choice.choose(logits.data(), correction));
    const std::vector<float> nan(24, NAN);
    Chosen broken{nan, nan, std::vector<float>(4, NAN), {0, 1, 2, 3}};
    expect_token(routes, choice, 1, broken);
  }
  for (const float odd : {-INFINITY, 200.0f, -200.0f}) {
    auto logits = random.normals(48);
    logits[24 + 13] = odd;
    expect_sorted(choice, logits, correction, 4);
  }
}

TEST(CudaScoredRouter, ForcedRoutesHaveTheWeightsOfTheirScores) {
  Random random(20);
  const int32_t tokens = 5, stride = 11;
  for (const bool normalize : {false, true}) {
    const Choice choice{33, 4, 3, 2, normalize, true, 1e-20f, 1.5f};
    const auto logits = random.normals(static_cast<size_t>(tokens * choice.n), 2.0f);
    const auto correction = random.normals(33);
    const DeviceArray<float> input(logits), corrections(correction);
    // Odd tokens are forced; the last slot has a weight of its own.
    DeviceArray<int32_t> forced(static_cast<size_t>(tokens * stride));
    DeviceArray<float> given(static_cast<size_t>(tokens * stride));
    for (int32_t token = 1; token < tokens; token += 2) {
      for (int32_t slot = 0; slot < choice.k; ++slot) {
        const auto at = static_cast<size_t>(token * stride + slot);
        forced[at] = (token + 9 * slot) % choice.n;
        given[at] = slot == choice.k - 1 ? 0.25f : -1.0f;
      }
    }
    Routes routes(tokens, choice.n, choice.k);
    Router router = routes.ask(input, choice.n, choice.k);
    router.normalize = normalize;
    router.forced_ids = forced.data();
    router.forced_weights = given.data();
    router.forced_stride = stride;
    ASSERT_TRUE(
        ok(scored_router_top_k(router, choice.scores(corrections.data()), tokens, nullptr)));
    for (int32_t token = 0; token < tokens; ++token) {
      Chosen expected = choice.choose(logits.data() + token * choice.n, correction);
      if (token % 2 != 0) {
        expected.ids.assign(forced.data() + token * stride,
                            forced.data() + token * stride + choice.k);
        expected.weights = choice.weigh(expected.scores, expected.ids);
        expected.weights.back() = 0.25f;
      }
      expect_token(routes, choice, token, expected);
    }
  }
}

TEST(CudaScoredRouter, GroupsTheRoutesOfOneToken) {
  Random random(21);
  const Choice choice{16, 4, 4, 2, true, true, 1e-20f, 1.5f};
  const auto logits = random.normals(16);
  const auto correction = random.normals(16);
  const DeviceArray<float> input(logits), corrections(correction);
  Routes routes(1, choice.n, choice.k);
  DeviceArray<int32_t> row_routes(4 * kLeastTileRows), slot_rows(4), tile_experts(4), num_tiles(1);
  Router router = routes.ask(input, choice.n, choice.k);
  router.normalize = true;
  router.grouping = {16,
                     4,
                     kLeastTileRows,
                     routes.ids.data(),
                     nullptr,
                     nullptr,
                     row_routes.data(),
                     slot_rows.data(),
                     tile_experts.data(),
                     num_tiles.data()};
  ASSERT_TRUE(ok(scored_router_top_k(router, choice.scores(corrections.data()), 1, nullptr)));
  std::vector<int32_t> ids = choice.choose(logits.data(), correction).ids;
  for (size_t slot = 0; slot < ids.size(); ++slot) {
    const auto row = static_cast<size_t>(slot_rows[slot]);
    EXPECT_EQ(row_routes[row], static_cast<int32_t>(slot));
    EXPECT_EQ(tile_experts[row / kLeastTileRows], ids[slot]);
  }
  std::ranges::sort(ids);
  EXPECT_EQ(tile_experts.to_vector(), ids);
  EXPECT_EQ(num_tiles[0], 4);
}

TEST(CudaScoredRouter, RefusesWhatItCannotDo) {
  const auto refused = [](const Router& router, const RouterScores& scores, int32_t tokens) {
    return scored_router_top_k(router, scores, tokens, nullptr).code == kInvalidArguments;
  };
  const Router router{.num_experts = 16, .top_k = 4};
  EXPECT_TRUE(refused({.num_experts = 16, .top_k = 17}, {}, 1));
  EXPECT_TRUE(refused(router, {}, 0));
  EXPECT_TRUE(refused(router, {.groups = 3}, 1));
  EXPECT_TRUE(refused(router, {.groups = 0}, 1));
  EXPECT_TRUE(refused(router, {.groups = 4, .chosen_groups = 5}, 1));
  EXPECT_TRUE(refused(router, {.groups = 8, .chosen_groups = 1}, 1))
      << "two experts for four slots";
  EXPECT_TRUE(refused({.num_experts = 128, .top_k = 1}, {.groups = 128, .chosen_groups = 2}, 1));
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
