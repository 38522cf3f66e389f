// SPDX-License-Identifier: Apache-2.0
// Output head: block statistics, best tokens, merging.
#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "kernel_test_util.h"
#include "tests/support/logits_digest.h"

namespace vitrine::kernels::testing {
namespace {

std::vector<HeadBlockStats> all_blocks(const CpuKernels& table, std::vector<float>* logits,
                                       float multiplier, bool statistics = true) {
  static const std::vector<char> next(kHeadNextBytes);  // fetched and nothing else
  const auto n = static_cast<int64_t>(logits->size());
  std::vector<HeadBlockStats> blocks((n + kHeadBlock - 1) / kHeadBlock);
  for (size_t b = 0; b < blocks.size(); ++b) {
    const int64_t begin = static_cast<int64_t>(b) * kHeadBlock;
    table.head_block(logits->data(), begin, std::min(n, begin + kHeadBlock), multiplier, statistics,
                     &blocks[b], b % 2 == 0 ? next.data() : nullptr);
  }
  return blocks;
}

HeadStats whole_head(const CpuKernels& table, std::vector<float> logits, float multiplier = 1.0f) {
  const auto blocks = all_blocks(table, &logits, multiplier);
  HeadStats stats;
  table.head_merge(blocks.data(), static_cast<int32_t>(blocks.size()), &stats);
  return stats;
}

void expect_best(const std::vector<float>& logits, int32_t count, const float* top_logits,
                 const int32_t* top_ids, int32_t id_base = 0) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!std::isnan(logits[i])) ids.push_back(static_cast<int32_t>(i));
  }
  std::stable_sort(ids.begin(), ids.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  ASSERT_EQ(count, std::min<int32_t>(kTopTokens, static_cast<int32_t>(ids.size())));
  for (int32_t i = 0; i < count; ++i) {
    EXPECT_EQ(top_ids[i], ids[i] + id_base) << "place " << i;
    EXPECT_TRUE(same_bits(top_logits[i], logits[ids[i]]));
  }
}

TEST(Head, AgainstDouble) {
  Random random(1);
  for (const int64_t n : {1, 9, 10, 11, 15, 16, 17, 100, 1023, 1024, 1025, 5000, 8192}) {
    for (const float spread : {0.1f, 3.0f, 30.0f}) {
      std::vector<float> logits = random.normals(n, spread);
      if (n == 5000) {
        for (float& logit : logits) logit = std::round(logit);  // many ties
      }
      const double max = *std::max_element(logits.begin(), logits.end());
      double sum = 0, sum_logit = 0;
      for (const float logit : logits) {
        const double p = std::exp(logit - max);
        sum += p;
        sum_logit += p * (logit - max);
      }
      const double entropy = std::log(sum) - sum_logit / sum;
      for (const CpuKernels* table : available_tables()) {
        const HeadStats stats = whole_head(*table, logits);
        // Each block's lanes add 64 terms, the tree four; terms themselves carry a few roundings.
        const double tolerance = (64 + 4 + 8) * kEpsilon;
        EXPECT_NEAR(stats.log_sum_exp, max + std::log(sum),
                    tolerance + kEpsilon * std::fabs(max + std::log(sum)));
        EXPECT_NEAR(stats.entropy, entropy,
                    tolerance * (1 + std::fabs(sum_logit / sum)) + kEpsilon * entropy);
        expect_best(logits, stats.count, stats.top_logits, stats.top_ids);
      }
    }
  }
}

TEST(Head, SameBitsInEveryTable) {
  if (vector_tables().empty()) GTEST_SKIP() << "no vector table runs on this machine";
  Random random(2);
  for (int round = 0; round < 1800; ++round) {
    const int64_t n = random.integer(1, 3000);
    std::vector<float> logits = random.normals(n, 4.0f);
    // Where a lane's entries are NaN, or all of a block but a few, these hide what else there is.
    if (random.integer(0, 3) == 0) {
      const int step = random.integer(0, 1) == 0 ? 1 : 16;
      const float filling = random.integer(0, 1) == 0 ? NAN : -INFINITY;
      for (int64_t i = random.integer(0, 15); i < n; i += step) logits[i] = filling;
    }
    for (int i = random.integer(0, 4); i > 0; --i) {
      const float special[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e38f};
      logits[random.integer(0, static_cast<int>(n) - 1)] = special[random.integer(0, 5)];
    }
    const float multiplier = round % 2 == 0 ? 1.0f : 0.37f;
    const CpuKernels& table = *vector_tables()[round / 2 % vector_tables().size()];
    std::vector<float> a = logits, b = logits;
    const bool statistics = round % 3 != 0;
    const auto blocks_a = all_blocks(portable_kernels(), &a, multiplier, statistics);
    const auto blocks_b = all_blocks(table, &b, multiplier, statistics);
    ASSERT_TRUE(same_bits(a, b)) << table.isa;
    for (size_t i = 0; i < blocks_a.size(); ++i) {
      const HeadBlockStats& x = blocks_a[i];
      const HeadBlockStats& y = blocks_b[i];
      ASSERT_TRUE(same_bits(x.max, y.max));
      ASSERT_TRUE(same_bits(x.sum_exp, y.sum_exp))
          << table.isa << ", round " << round << ", block " << i << ", largest " << x.max;
      ASSERT_TRUE(same_bits(x.sum_exp_logit, y.sum_exp_logit));
      ASSERT_EQ(x.hash, y.hash);
      ASSERT_EQ(x.count, y.count);
      for (int32_t t = 0; t < x.count; ++t) {
        ASSERT_EQ(x.top_ids[t], y.top_ids[t]);
        ASSERT_TRUE(same_bits(x.top_logits[t], y.top_logits[t]));
      }
    }
  }
}

/// The first one's sign is kept of zeros that are the largest of their lane, in every table.
TEST(Head, EqualZeros) {
  for (const auto& [positive, negative] : {std::pair{0, 512}, {512, 0}, {16, 32}, {1000, 40}}) {
    std::vector<float> logits(kHeadBlock, -1.0f);
    logits[positive] = 0.0f;
    logits[negative] = -0.0f;
    for (const bool statistics : {false, true}) {
      HeadBlockStats expected;
      portable_kernels().head_block(logits.data(), 0, kHeadBlock, 1.0f, statistics, &expected,
                                    nullptr);
      for (const CpuKernels* table : vector_tables()) {
        HeadBlockStats stats;
        table->head_block(logits.data(), 0, kHeadBlock, 1.0f, statistics, &stats, nullptr);
        ASSERT_TRUE(same_bits(expected.max, stats.max)) << table->isa << " +0 at " << positive;
      }
    }
  }
}

TEST(Head, MultiplierIsAppliedToTheLogits) {
  Random random(3);
  const std::vector<float> logits = random.normals(1500);
  for (const CpuKernels* table : available_tables()) {
    std::vector<float> scaled = logits, untouched = logits, expected = logits;
    for (float& logit : expected) logit *= 0.125f;
    all_blocks(*table, &scaled, 0.125f);
    all_blocks(*table, &untouched, 1.0f);
    EXPECT_TRUE(same_bits(scaled, expected));
    EXPECT_TRUE(same_bits(untouched, logits));
    const HeadStats a = whole_head(*table, logits, 0.125f);
    const HeadStats b = whole_head(*table, expected);
    EXPECT_TRUE(same_bits(a.log_sum_exp, b.log_sum_exp));
    EXPECT_EQ(a.top_ids[0], b.top_ids[0]);
  }
}

TEST(Head, TiesGoToTheLowerId) {
  for (const CpuKernels* table : available_tables()) {
    std::vector<float> logits(3000, 1.0f);
    logits[2999] = logits[1024] = 2.0f;
    const HeadStats stats = whole_head(*table, logits);
    expect_best(logits, stats.count, stats.top_logits, stats.top_ids);
    EXPECT_EQ(stats.top_ids[0], 1024);
    EXPECT_EQ(stats.top_ids[1], 2999);
    EXPECT_EQ(stats.top_ids[2], 0);
  }
}

TEST(Head, MaskedLogits) {
  Random random(4);
  for (const CpuKernels* table : available_tables()) {
    std::vector<float> logits(4000, -INFINITY);  // first and last block: nothing allowed
    for (int i = 1500; i < 2500; ++i) logits[i] = random.normals(1)[0];
    const HeadStats stats = whole_head(*table, logits);
    double sum = 0, sum_logit = 0;
    for (int i = 1500; i < 2500; ++i) {
      sum += std::exp(static_cast<double>(logits[i]));
      sum_logit += std::exp(static_cast<double>(logits[i])) * logits[i];
    }
    EXPECT_NEAR(stats.log_sum_exp, std::log(sum), 100 * kEpsilon);
    EXPECT_NEAR(stats.entropy, std::log(sum) - sum_logit / sum, 400 * kEpsilon);
    expect_best(logits, stats.count, stats.top_logits, stats.top_ids);
    const HeadStats none = whole_head(*table, std::vector<float>(1030, -INFINITY));
    EXPECT_EQ(none.log_sum_exp, -INFINITY);
    EXPECT_TRUE(std::isnan(none.entropy));
    EXPECT_EQ(none.count, kTopTokens);
    EXPECT_EQ(none.top_ids[9], 9);
  }
}

TEST(Head, FarBelowTheLargestCountsAsNothing) {
  const float edge = -87.0f;  // kExpStatisticsLow, written here so that moving it is noticed
  for (const CpuKernels* table : available_tables()) {
    for (const int64_t n : {40, 1024}) {
      for (const float far : {edge, std::nextafter(edge, 0.0f), std::nextafter(edge, -90.0f),
                              -88.0f, -1e7f, -1e30f, -INFINITY}) {
        std::vector<float> logits(n, -INFINITY);
        logits[0] = 0.0f;
        logits[n - 5] = far;  // in a lane of its own, or the sum would not show it
        const HeadBlockStats stats = all_blocks(*table, &logits, 1.0f)[0];
        EXPECT_EQ(stats.sum_exp, 1.0f);
        const double expected = far < edge ? 0.0 : far * std::exp(static_cast<double>(far));
        EXPECT_NEAR(stats.sum_exp_logit, expected, 1e-5 * std::fabs(expected))
            << table->isa << " " << far;
        EXPECT_EQ(stats.sum_exp_logit == 0.0f, far < edge) << table->isa << " " << far;
      }
    }
  }
}

TEST(Head, BlocksFarFromEachOtherAreMerged) {
  Random random(12);
  const float centres[] = {-3000.0f, -200.0f, -70.0f, -20.0f, 0.0f, 30.0f, 55.0f, 90.0f, 2000.0f};
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits;
    for (int block = 0; block < 4; ++block) {
      const float centre = centres[random.integer(0, 8)];
      for (const float logit : random.normals(block == 3 ? 77 : 1024, 2.0f)) {
        logits.push_back(centre + logit);
      }
    }
    const double max = *std::ranges::max_element(logits);
    double sum = 0, sum_logit = 0;
    for (const float logit : logits) {
      sum += std::exp(logit - max);
      sum_logit += std::exp(logit - max) * (logit - max);
    }
    const double log_sum_exp = max + std::log(sum);
    for (const CpuKernels* table : available_tables()) {
      const HeadStats stats = whole_head(*table, logits);
      EXPECT_NEAR(stats.log_sum_exp, log_sum_exp, kEpsilon * (76 + std::fabs(log_sum_exp)));
      EXPECT_NEAR(stats.entropy, std::log(sum) - sum_logit / sum, 76 * kEpsilon * 10);
    }
  }
}

// Few entries reach a block's threshold, or some more than have a place, or all.
TEST(Head, BestOfManyEqualLogits) {
  Random random(13);
  for (int round = 0; round < 400; ++round) {
    std::vector<float> logits = random.normals(kHeadBlock * 2, 1.0f);
    const float step = 0.01f * static_cast<float>(1 << random.integer(0, 8));
    for (float& logit : logits) logit = std::round(logit / step) * step;
    const int same = random.integer(0, 80);  // about as many candidates as are kept, more or fewer
    for (int i = 0; i < same; ++i) logits[random.integer(0, kHeadBlock - 1)] = 5.0f;
    for (const CpuKernels* table : available_tables()) {
      const auto blocks = all_blocks(*table, &logits, 1.0f, round % 2 == 0);
      for (size_t b = 0; b < blocks.size(); ++b) {
        const int64_t begin = static_cast<int64_t>(b) * kHeadBlock;
        expect_best({logits.begin() + begin, logits.begin() + begin + kHeadBlock}, blocks[b].count,
                    blocks[b].top_logits, blocks[b].top_ids, static_cast<int32_t>(begin));
      }
    }
  }
}

TEST(Head, WithoutStatisticsOnlyTheSumsAreMissing) {
  Random random(6);
  std::vector<float> logits = random.normals(700);
  for (const CpuKernels* table : available_tables()) {
    HeadBlockStats with, without;
    table->head_block(logits.data(), 0, 700, 1.0f, true, &with, nullptr);
    table->head_block(logits.data(), 0, 700, 1.0f, false, &without, nullptr);
    EXPECT_EQ(without.max, with.max);
    EXPECT_EQ(without.sum_exp, 0.0f);
    EXPECT_EQ(without.sum_exp_logit, 0.0f);
    EXPECT_EQ(without.hash, 0u);
    EXPECT_NE(with.hash, 0u);
    expect_best(logits, without.count, without.top_logits, without.top_ids);
  }
}

TEST(Head, DigestIsOfEveryBitOfTheRow) {
  Random random(8);
  for (const int64_t n : {1, 2, 15, 511, 512, 513, 1023, 1024, 1025, 1537, 5001, 8192}) {
    std::vector<float> logits = random.normals(n, 4.0f);
    logits[static_cast<size_t>(n) / 2] = n % 2 == 0 ? NAN : -INFINITY;
    const uint64_t expected = testing_support::logits_digest(logits);
    for (const CpuKernels* table : available_tables()) {
      EXPECT_EQ(whole_head(*table, logits).digest, expected) << table->isa << ", " << n;
    }
    for (int64_t at = 0; at < n; at += std::max<int64_t>(1, n / 97)) {
      for (const uint32_t bit : {0u, 31u}) {
        std::vector<float> changed = logits;
        uint32_t word = std::bit_cast<uint32_t>(changed[static_cast<size_t>(at)]) ^ 1u << bit;
        std::memcpy(&changed[static_cast<size_t>(at)], &word, sizeof word);
        EXPECT_NE(testing_support::logits_digest(changed), expected) << n << ", logit " << at;
      }
    }
  }
}

// The row's tail is in no other value of a record.
TEST(Head, DigestSeesWhatNoOtherStatisticDoes) {
  Random random(9);
  std::vector<float> logits = random.normals(8192, 1.0f);
  for (size_t i = 0; i < 4000; ++i) logits[2 * i] -= 40.0f;
  for (const CpuKernels* table : available_tables()) {
    const HeadStats before = whole_head(*table, logits);
    std::vector<float> changed = logits;
    changed[4000] = std::nextafter(changed[4000], 0.0f);
    const HeadStats after = whole_head(*table, changed);
    EXPECT_TRUE(same_bits(before.log_sum_exp, after.log_sum_exp));
    EXPECT_TRUE(same_bits(before.entropy, after.entropy));
    for (int i = 0; i < kTopTokens; ++i) {
      EXPECT_EQ(before.top_ids[i], after.top_ids[i]);
      EXPECT_TRUE(same_bits(before.top_logits[i], after.top_logits[i]));
    }
    EXPECT_NE(before.digest, after.digest);
    // Two logits that change places, in a block or between blocks.
    for (const size_t other : {size_t{4001}, size_t{4512}, size_t{7000}}) {
      changed = logits;
      std::swap(changed[4000], changed[other]);
      EXPECT_NE(whole_head(*table, changed).digest, before.digest);
    }
  }
}

TEST(Head, NanIsReportedAndNeverAmongTheBest) {
  Random random(5);
  for (const CpuKernels* table : available_tables()) {
    for (const int at : {3, 1500, 2999}) {
      std::vector<float> logits = random.normals(3000);
      logits[at] = NAN;
      const HeadStats stats = whole_head(*table, logits);
      EXPECT_TRUE(std::isnan(stats.log_sum_exp));
      EXPECT_TRUE(std::isnan(stats.entropy));
      expect_best(logits, stats.count, stats.top_logits, stats.top_ids);
    }
    const HeadStats all = whole_head(*table, std::vector<float>(20, NAN));
    EXPECT_EQ(all.count, 0);
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
