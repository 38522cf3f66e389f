// SPDX-License-Identifier: Apache-2.0
#include "sample/best_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

namespace vitrine {
namespace {

std::vector<int32_t> sorted_best(const std::vector<float>& logits, size_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  ids.resize(std::min(count, ids.size()));
  return ids;
}

TEST(BestTokens, AreThoseOfAWholeSort) {
  std::mt19937 random(7);
  BestTokens best;
  for (const size_t vocabulary : {1u, 5u, 127u, 513u, 1000u, 5003u}) {
    for (const float step : {0.0F, 0.5F, 1e-3F}) {  // many equal ones, some, few
      std::vector<float> logits(vocabulary);
      for (float& logit : logits) {
        logit = step * static_cast<float>(random() % 4096) - 3.0F;
      }
      for (const size_t count : {0u, 1u, 8u, 100u, 128u, 6000u}) {
        const auto found = best.find(logits, count);
        EXPECT_EQ(std::vector<int32_t>(found.begin(), found.end()), sorted_best(logits, count))
            << vocabulary << " logits in steps of " << step << ", " << count;
      }
    }
  }
}

TEST(BestTokens, LeaveOutWhatIsNoNumber) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {nan, 1, infinity, -infinity, 2, nan};
  BestTokens best;
  const auto found = best.find(logits, 6);
  EXPECT_EQ(std::vector<int32_t>(found.begin(), found.end()), (std::vector<int32_t>{2, 4, 1, 3}));
}

}  // namespace
}  // namespace vitrine
