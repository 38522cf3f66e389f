// SPDX-License-Identifier: Apache-2.0
// The output head's epilogue.
#include "kernels/cuda/head/head.h"

#include <numeric>

#include "tests/cuda/cuda_test_util.h"
#include "tests/support/logits_digest.h"

namespace vitrine::kernels::cuda::testing {
namespace {

constexpr int64_t kRecordWords = 31;
enum : int32_t {
  kChosenLogit = 2,
  kLogSumExp = 3,
  kEntropy = 4,
  kTopIds = 6,
  kTopLogits = 17,
  kDigest = 28
};

struct HeadRun {
  HeadRun(const std::vector<float>& values, int64_t rows)
      : logits(values),
        blocks(static_cast<size_t>(rows * head_blocks(static_cast<int64_t>(values.size()) / rows))),
        ids(static_cast<size_t>(rows)),
        words(static_cast<size_t>(rows * kRecordWords)) {
    head.vocab = static_cast<int64_t>(values.size()) / rows;
    head.logits = logits.data();
    head.blocks = blocks.data();
    head.chosen_ids = ids.data();
    head.record = {words.data(), kRecordWords, kChosenLogit, kLogSumExp,
                   kEntropy,     kTopIds,      kTopLogits,   kDigest};
  }
  float number(size_t row, int32_t word) const {
    return std::bit_cast<float>(words[row * kRecordWords + static_cast<size_t>(word)]);
  }
  DeviceArray<float> logits;
  DeviceArray<HeadBlock> blocks;
  DeviceArray<int32_t> ids;
  DeviceArray<int32_t> words;
  Head head;
};

// Blocks and record of one row against the portable kernels.
void expect_portable(HeadRun& run, size_t row, std::vector<float> logits, float multiplier,
                     bool statistics = true) {
  const auto n = static_cast<int64_t>(logits.size());
  std::vector<HeadBlockStats> blocks(static_cast<size_t>(head_blocks(n)));
  for (size_t b = 0; b < blocks.size(); ++b) {
    const auto begin = static_cast<int64_t>(b) * kHeadBlock;
    portable_kernels().head_block(logits.data(), begin, std::min(n, begin + kHeadBlock), multiplier,
                                  statistics, &blocks[b], nullptr);
    const HeadBlockStats& expected = blocks[b];
    const HeadBlock& got = run.blocks[row * blocks.size() + b];
    ASSERT_EQ(got.hash, expected.hash) << "n " << n << " block " << b;
    ASSERT_EQ(got.count, expected.count);
    ASSERT_TRUE(got.max == expected.max || same_bits(got.max, expected.max));
    ASSERT_TRUE(same_bits(got.sum_exp, expected.sum_exp)) << got.sum_exp << " " << expected.sum_exp;
    ASSERT_TRUE(same_bits(got.sum_exp_logit, expected.sum_exp_logit));
    for (int i = 0; i < got.count; ++i) {
      ASSERT_EQ(got.top_ids[i], expected.top_ids[i]);
      ASSERT_TRUE(same_bits(got.top_logits[i], expected.top_logits[i]));
    }
  }
  for (int64_t i = 0; i < n; ++i) {
    ASSERT_TRUE(same_bits(run.logits[row * logits.size() + static_cast<size_t>(i)],
                          logits[static_cast<size_t>(i)]));
  }
  HeadStats stats;
  portable_kernels().head_merge(blocks.data(), static_cast<int32_t>(blocks.size()), &stats);
  ASSERT_EQ(run.ids[row], stats.count > 0 ? stats.top_ids[0] : -1);
  if (!statistics) return;
  const auto digest_low = static_cast<uint32_t>(run.words[row * kRecordWords + kDigest]);
  const auto digest_high = static_cast<uint32_t>(run.words[row * kRecordWords + kDigest + 1]);
  EXPECT_EQ(digest_low | uint64_t{digest_high} << 32, stats.digest);
  const auto close = [](float a, float b) {
    return same_bits(a, b) || std::fabs(a - b) <= 1e-6f * (1 + std::fabs(b));
  };
  EXPECT_TRUE(close(run.number(row, kLogSumExp), stats.log_sum_exp))
      << run.number(row, kLogSumExp) << " " << stats.log_sum_exp;
  EXPECT_TRUE(close(run.number(row, kEntropy), stats.entropy))
      << run.number(row, kEntropy) << " " << stats.entropy;
  for (int i = 0; i < kTopTokens; ++i) {
    const auto word = row * kRecordWords + static_cast<size_t>(kTopIds + i);
    ASSERT_EQ(run.words[word], i < stats.count ? stats.top_ids[i] : -1) << "place " << i;
    ASSERT_TRUE(
        same_bits(run.number(row, kTopLogits + i), i < stats.count ? stats.top_logits[i] : 0.0f));
  }
  for (const size_t untouched : {0, 1, 5, 16, 27, 30}) {
    ASSERT_EQ(run.words[row * kRecordWords + untouched], -1);
  }
}

std::vector<float> slice(const std::vector<float>& all, size_t row, size_t n) {
  return {all.begin() + static_cast<int64_t>(row * n),
          all.begin() + static_cast<int64_t>((row + 1) * n)};
}

TEST(CudaHead, HasThePortableBits) {
  Random random(11);
  uint64_t seed = 0;
  for (const size_t n : {1, 9, 11, 100, 1023, 1024, 1025, 3000, 8192}) {
    for (const float multiplier : {1.0f, 0.3f}) {
      for (const bool statistics : {true, false}) {
        emulator::set_seed(++seed);
        auto logits = random.normals(2 * n, 4.0f);
        if (n == 3000) {
          for (float& logit : logits) logit = std::round(logit);  // ties, and zeros of both signs
        }
        HeadRun run(logits, 2);
        run.head.multiplier = multiplier;
        if (!statistics) run.head.record.words = nullptr;
        ASSERT_TRUE(ok(head_epilogue(run.head, 2, nullptr)));
        for (size_t row = 0; row < 2; ++row) {
          expect_portable(run, row, slice(logits, row, n), multiplier, statistics);
        }
      }
    }
  }
}

TEST(CudaHead, MasksAndNumbersThatAreNone) {
  Random random(12);
  const size_t n = 2100;
  for (int kind = 0; kind < 6; ++kind) {
    auto logits = random.normals(n, 2.0f);
    if (kind == 0) logits[1500] = NAN;
    if (kind == 1) std::fill_n(logits.begin(), 1024, -INFINITY);
    if (kind == 2) std::ranges::fill(logits, -INFINITY);
    if (kind == 3) std::ranges::fill(logits, NAN);
    if (kind == 4) {
      std::ranges::fill(logits, -INFINITY);
      logits[2] = -3;
      logits[2050] = 1;
    }
    if (kind == 5) {  // about the distance from which on an exponential counts as nothing
      for (size_t i = 0; i < n; ++i) logits[i] = -86.5f - static_cast<float>(i % 64) / 64;
      for (size_t i = 0; i < n; i += 700) logits[i] = 0;
    }
    HeadRun run(logits, 1);
    ASSERT_TRUE(ok(head_epilogue(run.head, 1, nullptr)));
    expect_portable(run, 0, logits, 1.0f);
  }
}

TEST(CudaHead, AgainstDouble) {
  Random random(13);
  const auto logits = random.normals(5000, 3.0f);
  HeadRun run(logits, 1);
  const DeviceArray<int32_t> targets(std::vector<int32_t>{4321});
  run.head.targets = targets.data();
  ASSERT_TRUE(ok(head_epilogue(run.head, 1, nullptr)));
  double sum = 0, sum_logit = 0;
  for (const float logit : logits) {
    sum += std::exp(double{logit});
    sum_logit += std::exp(double{logit}) * logit;
  }
  EXPECT_NEAR(run.number(0, kLogSumExp), std::log(sum), 1e-5);
  EXPECT_NEAR(run.number(0, kEntropy), std::log(sum) - sum_logit / sum, 1e-5);
  EXPECT_EQ(run.ids[0], 4321);
  EXPECT_EQ(run.number(0, kChosenLogit), logits[4321]);
  const uint64_t digest = static_cast<uint32_t>(run.words[kDigest]) |
                          uint64_t{static_cast<uint32_t>(run.words[kDigest + 1])} << 32;
  EXPECT_EQ(digest, vitrine::testing_support::logits_digest(logits));
}

// A row's record has the same bits alone and among others.
TEST(CudaHead, ARowAloneAndInABatch) {
  Random random(14);
  const size_t n = 3001;
  const auto logits = random.normals(4 * n, 5.0f);
  HeadRun batch(logits, 4);
  ASSERT_TRUE(ok(head_epilogue(batch.head, 4, nullptr)));
  for (size_t row = 0; row < 4; ++row) {
    emulator::set_seed(row);
    HeadRun alone(slice(logits, row, n), 1);
    ASSERT_TRUE(ok(head_epilogue(alone.head, 1, nullptr)));
    EXPECT_EQ(alone.ids[0], batch.ids[row]);
    EXPECT_EQ(0, std::memcmp(alone.words.data(), batch.words.data() + row * kRecordWords,
                             kRecordWords * sizeof(int32_t)));
  }
}

TEST(CudaHead, RefusesWhatItCannotDo) {
  Head head{.vocab = 0};
  EXPECT_EQ(head_epilogue(head, 1, nullptr).code, kInvalidArguments);
  head.vocab = 10;
  EXPECT_EQ(head_epilogue(head, 0, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
