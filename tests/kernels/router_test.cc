// SPDX-License-Identifier: Apache-2.0
// Router: probabilities, selection, ties, normalisation.
#include <algorithm>
#include <numeric>

#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

struct Choice {
  std::vector<float> probs;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Choice route(const CpuKernels& table, const std::vector<float>& logits, int32_t k, bool normalize,
             bool softmax_after_topk) {
  Choice choice;
  choice.probs.assign(logits.size(), -1.0f);
  choice.ids.assign(k, -1);
  choice.weights.assign(k, -1.0f);
  table.router_top_k(logits.data(), static_cast<int32_t>(logits.size()), k, normalize,
                     softmax_after_topk, choice.probs.data(), choice.ids.data(),
                     choice.weights.data());
  return choice;
}

std::vector<int32_t> best_ids(const std::vector<float>& values, int32_t k) {
  std::vector<int32_t> ids(values.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return values[a] > values[b]; });
  ids.resize(k);
  return ids;
}

TEST(Router, AgainstDoubleAndSameBits) {
  Random random(1);
  for (const int32_t n : {1, 2, 5, 8, 15, 16, 17, 33, 60, 64, 128, 511, 512}) {
    for (const int32_t wanted : {1, 2, 8, 32}) {
      const int32_t k = std::min(n, wanted);
      for (const int mode : {0, 1, 2}) {
        std::vector<float> logits = random.normals(n, 2.0f);
        // Coarse values give many ties.
        if (random.integer(0, 1) == 1) {
          for (float& logit : logits) logit = std::round(logit);
        }
        double sum = 0;
        const double max = *std::max_element(logits.begin(), logits.end());
        for (const float logit : logits) sum += std::exp(logit - max);
        Choice first;
        for (const CpuKernels* table : available_tables()) {
          const Choice choice = route(*table, logits, k, mode == 1, mode == 2);
          const double tolerance = (n / 16.0 + 12) * kEpsilon;
          double chosen = 0;
          for (int32_t i = 0; i < n; ++i) {
            const double expected = std::exp(logits[i] - max) / sum;
            ASSERT_NEAR(choice.probs[i], expected, tolerance * expected + 8 * kEpsilon * expected);
          }
          ASSERT_EQ(choice.ids, best_ids(choice.probs, k)) << table->isa << " n " << n;
          for (const int32_t id : choice.ids) chosen += std::exp(logits[id] - max) / sum;
          float total = 0;
          for (int32_t s = 0; s < k; ++s) {
            const int32_t id = choice.ids[s];
            const double prob = std::exp(logits[id] - max) / sum;
            const double expected = mode == 0 ? prob : prob / chosen;
            ASSERT_NEAR(choice.weights[s], expected, 3 * tolerance + k * kEpsilon);
            if (mode == 0) {
              ASSERT_EQ(choice.weights[s], choice.probs[id]);
            }
            total += choice.probs[id];
          }
          if (mode == 1) {
            for (int32_t s = 0; s < k; ++s) {
              ASSERT_EQ(choice.weights[s], choice.probs[choice.ids[s]] / total);
            }
          }
          if (first.ids.empty()) first = choice;
          ASSERT_TRUE(same_bits(first.probs, choice.probs)) << n;
          ASSERT_TRUE(same_bits(first.weights, choice.weights)) << n;
          ASSERT_EQ(first.ids, choice.ids);
        }
      }
    }
  }
}

TEST(Router, TiesGoToTheLowerId) {
  for (const CpuKernels* table : available_tables()) {
    std::vector<float> logits(40, 1.0f);
    EXPECT_EQ(route(*table, logits, 4, true, false).ids, (std::vector<int32_t>{0, 1, 2, 3}));
    logits[37] = 2.0f;
    logits[22] = 2.0f;
    EXPECT_EQ(route(*table, logits, 4, true, false).ids, (std::vector<int32_t>{22, 37, 0, 1}));
    // Probabilities that underflow to 0 are ties too.
    std::vector<float> far(20, -500.0f);
    far[11] = 0.0f;
    far[15] = -200.0f;
    EXPECT_EQ(route(*table, far, 3, false, false).ids, (std::vector<int32_t>{11, 0, 1}));
  }
}

TEST(Router, SoftmaxOverTheChosenSumsToOne) {
  Random random(2);
  for (const CpuKernels* table : available_tables()) {
    const std::vector<float> logits = random.normals(62, 30.0f);
    const Choice choice = route(*table, logits, 6, false, true);
    const float sum = std::accumulate(choice.weights.begin(), choice.weights.end(), 0.0f);
    EXPECT_NEAR(sum, 1.0f, 6 * kEpsilon);
    EXPECT_TRUE(std::is_sorted(choice.weights.rbegin(), choice.weights.rend()));
  }
}

TEST(Router, NanAndInfinity) {
  for (const CpuKernels* table : available_tables()) {
    std::vector<float> logits(24, 0.5f);
    logits[3] = -INFINITY;  // an expert that is switched off
    const Choice off = route(*table, logits, 24, true, false);
    EXPECT_EQ(off.ids.back(), 3);
    EXPECT_EQ(off.probs[3], 0.0f);
    EXPECT_EQ(off.weights.back(), 0.0f);
    for (const float bad : {static_cast<float>(NAN), static_cast<float>(INFINITY)}) {
      logits[20] = bad;
      const Choice choice = route(*table, logits, 3, true, false);
      EXPECT_EQ(choice.ids, (std::vector<int32_t>{0, 1, 2}));  // valid ids, whatever the values
      for (const float weight : choice.weights) EXPECT_TRUE(std::isnan(weight));
    }
  }
}

TEST(RouteWeights, AreTheRoutersForItsOwnChoiceAndNormalisedForAnyOther) {
  Random random(7);
  for (const int32_t n : {2, 8, 17, 64, 128}) {
    for (const int32_t k : {1, 2, 8, 33}) {
      if (k > n) continue;
      for (const int mode : {0, 1, 2}) {
        const std::vector<float> logits = random.normals(n, 2.0f);
        std::vector<int32_t> other(n);
        std::iota(other.begin(), other.end(), 0);
        for (int32_t i = n - 1; i > 0; --i) std::swap(other[i], other[random.integer(0, i)]);
        other.resize(k);
        std::vector<float> first;
        for (const CpuKernels* table : available_tables()) {
          const Choice choice = route(*table, logits, k, mode == 1, mode == 2);
          std::vector<float> weights(k, -1.0f);
          table->route_weights(logits.data(), choice.probs.data(), choice.ids.data(), k, mode == 1,
                               mode == 2, weights.data());
          ASSERT_EQ(weights, choice.weights) << table->isa << " n " << n << " k " << k;
          table->route_weights(logits.data(), choice.probs.data(), other.data(), k, mode == 1,
                               mode == 2, weights.data());
          double sum = 0;
          for (const int32_t id : other) sum += choice.probs[id];
          for (int32_t slot = 0; slot < k; ++slot) {
            const double probability = choice.probs[other[slot]];
            const double expected = mode == 0 ? probability : probability / sum;
            ASSERT_NEAR(weights[slot], expected, 1e-5 * expected) << table->isa << " slot " << slot;
          }
          if (first.empty()) first = weights;
          ASSERT_EQ(weights, first) << table->isa;
        }
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
