// SPDX-License-Identifier: Apache-2.0
// What makes sampling quick changes nothing: the short list against a look at every token, and the
// wide passes against the portable ones.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "sample/numerics.h"
#include "sample/scan.h"
#include "vitrine/sample.h"

namespace vitrine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Does nothing; but nothing is known of a host's stage, so every token is looked at behind it.
class BlindStage : public SamplerStage {
 public:
  std::string_view name() const override { return "blind"; }
  uint32_t stage_id() const override { return kFirstHostStageId; }
  void apply(Candidates&, const SampleContext&) override {}
};

std::vector<float> make_logits(size_t count, int kind, std::mt19937& engine) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(engine);
  for (float& logit : logits) {
    if (kind == 1) logit = std::round(logit);
    if (kind == 2) logit = 4.5f;
    if (kind == 3 && engine() % 3 != 0) logit = -kInfinity;
    if (kind == 4) logit *= 1e-33f;
    if (kind == 5) logit *= 1e29f;
    // Neighbours in float: a division puts some of them together.
    if (kind == 6) logit = std::bit_cast<float>(0x40a00000u + static_cast<uint32_t>(engine() % 64));
    if (kind == 7) logit = engine() % 2 == 0 ? 0.0f : -0.0f;
    if (kind == 8) logit = -1000.0f + logit * 1e-3f;
  }
  if (kind == 9) std::sort(logits.begin(), logits.end());
  logits[engine() % count] = kind == 2 ? 4.5f : logits[0];
  if (kind == 3) logits[engine() % count] = 1.0f;
  return logits;
}

TEST(Shortlist, ChangesNothing) {
  std::mt19937 engine(99);
  const std::vector<SamplerOptions> all = {
      {.temperature = 0},
      {.top_k = 1},
      {.temperature = 0.7f, .top_k = 40},
      {.temperature = 0.7f, .top_k = 300, .min_p = 0.05f},
      {.temperature = 1.3f, .min_p = 0.02f},
      {.temperature = 3.1f, .min_p = 1.0f},
      {.temperature = 1e-6f, .top_k = 5},
      {.temperature = 1e6f, .top_k = 5},
      {.temperature = 0.9f, .top_k = 20, .logit_bias = {{3, 4.0f}}},
      {.temperature = 0.9f, .top_k = 20, .typical_p = 0.9f, .top_n_sigma = 2.0f},
      {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f}};
  for (const size_t count : {4u, 511u, 512u, 513u, 4099u, 20011u}) {
    for (int kind = 0; kind < 10; ++kind) {
      const std::vector<float> logits = make_logits(count, kind, engine);
      for (const SamplerOptions& options : all) {
        SamplerPipeline quick = SamplerPipeline::from_options(options);
        SamplerPipeline complete;
        complete.add(std::make_unique<BlindStage>());
        for (const auto& stage : quick.stages()) {
          complete.add(stage->fork());
          complete.add(std::make_unique<BlindStage>());
        }
        for (int position = 0; position < 3; ++position) {
          const SampleContext context{.seed = 5, .position = position};
          ASSERT_EQ(quick.sample(logits, context), complete.sample(logits, context))
              << count << " kind " << kind << " temperature " << options.temperature;
          EXPECT_EQ(quick.decision().candidates, complete.decision().candidates);
          EXPECT_EQ(quick.decision().probability, complete.decision().probability);
        }
      }
    }
  }
}

TEST(Shortlist, StandsBehindAMaskToo) {
  std::mt19937 engine(7);
  const std::vector<float> logits = make_logits(5000, 0, engine);
  for (const uint32_t pattern : {0xffffffffu, 0x55555555u, 0x00000100u}) {
    const std::vector<uint32_t> mask((logits.size() + 31) / 32, pattern);
    const SamplerOptions options{.temperature = 0.8f, .top_k = 40, .top_p = 0.9f};
    SamplerPipeline masked = SamplerPipeline::from_options(options);
    SamplerPipeline plain = SamplerPipeline::from_options(options);
    std::vector<float> allowed = logits;
    for (size_t id = 0; id < allowed.size(); ++id) {
      if ((pattern >> id % 32 & 1) == 0) allowed[id] = -kInfinity;
    }
    for (int position = 0; position < 50; ++position) {
      masked.set_allowed_tokens(mask);
      const SampleContext context{.seed = 3, .position = position};
      EXPECT_EQ(masked.sample(logits, context), plain.sample(allowed, context));
    }
  }
}

TEST(Scan, SameBitsInEveryForm) {
  const std::vector<ScanForms> forms = scan_forms();
  std::mt19937 engine(3);
  for (const size_t count : {1u, 7u, 8u, 31u, 33u, 512u, 700u, 1024u, 5003u}) {
    for (int kind = 0; kind < 10; ++kind) {
      std::vector<float> logits = make_logits(count, kind, engine);
      const float largest = *std::ranges::max_element(logits);
      std::vector<double> expected_weights(count), weights(count);
      const bool is_finite = std::isfinite(largest);
      const double expected_sum =
          is_finite ? forms[0].exponentials(logits, largest, expected_weights.data()) : 0;
      for (const ScanForms& form : forms) {
        std::vector<float> maxima(scan_blocks(count) * kScanLanes);
        EXPECT_TRUE(form.scan(logits, maxima.data()));
        for (size_t i = 0; i < maxima.size(); ++i) {
          const size_t begin = i / kScanLanes * kScanBlock;
          float expected = -kInfinity;
          for (size_t id = begin + i % kScanLanes; id < std::min(count, begin + kScanBlock);
               id += kScanLanes) {
            expected = std::max(expected, logits[id]);
          }
          EXPECT_EQ(maxima[i], expected);
        }
        EXPECT_EQ(form.largest(logits), largest);
        EXPECT_EQ(form.finite(logits),
                  std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); }));
        if (is_finite) {
          const double sum = form.exponentials(logits, largest, weights.data());
          EXPECT_EQ(std::bit_cast<uint64_t>(sum), std::bit_cast<uint64_t>(expected_sum));
          EXPECT_EQ(weights, expected_weights);
        }
        for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN(),
                                -std::numeric_limits<float>::quiet_NaN()}) {
          const size_t where = engine() % count;
          const float good = std::exchange(logits[where], bad);
          EXPECT_FALSE(form.scan(logits, maxima.data()));
          EXPECT_FALSE(form.finite(logits));
          logits[where] = good;
        }
      }
    }
  }
}

TEST(Numerics, NearTheLibrarys) {
  std::mt19937_64 engine(12);
  std::uniform_real_distribution<double> exponent(-708, 0);
  for (int i = 0; i < 200000; ++i) {
    const double x = i % 2 == 0 ? exponent(engine) : exponent(engine) / 708;
    EXPECT_NEAR(exp_nonpositive(x) / std::exp(x), 1, 5e-16) << x;
    const double y = std::exp(exponent(engine)) * (i % 3 == 0 ? 1e300 : 1);
    EXPECT_NEAR(log_positive(y), std::log(y), 4e-16 * std::max(1.0, std::abs(std::log(y)))) << y;
  }
  EXPECT_EQ(exp_nonpositive(0), 1);
  EXPECT_EQ(exp_nonpositive(-std::numeric_limits<double>::infinity()), 0);
  EXPECT_EQ(exp_nonpositive(-709), 0);
  EXPECT_EQ(log_positive(1), 0);
  EXPECT_NEAR(log_positive(1 + 1e-12), std::log(1 + 1e-12), 1e-27);
}

}  // namespace
}  // namespace vitrine
