// SPDX-License-Identifier: Apache-2.0
#include "vitrine/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <new>
#include <numeric>
#include <random>
#include <set>

namespace {
std::size_t allocation_count = 0;
}  // namespace

// Not inlined: g++ 12 would warn that free() meets memory of the library's operator new.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocation_count;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocation_count;
  return std::malloc(size);
}
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace vitrine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A host's own stage, in the twenty lines that it should take: never the same token twice running.
class NoRepeatStage : public SamplerStage {
 public:
  std::string_view name() const override { return "no_repeat"; }
  uint32_t stage_id() const override { return kFirstHostStageId; }
  void apply(Candidates& candidates, const SampleContext& context) override {
    if (context.history.empty()) return;
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      const int32_t id =
          candidates.ids.empty() ? static_cast<int32_t>(index) : candidates.ids[index];
      if (id == context.history.back()) candidates.logits[index] = -kInfinity;
    }
  }
};

/// Selects the first candidate, having noted them all.
class CaptureStage : public SamplerStage {
 public:
  explicit CaptureStage(std::vector<int32_t>* ids) : ids_(ids) {}
  std::string_view name() const override { return "capture"; }
  uint32_t stage_id() const override { return kFirstHostStageId + 1; }
  void apply(Candidates& candidates, const SampleContext&) override {
    ids_->clear();
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      ids_->push_back(candidates.ids.empty() ? static_cast<int32_t>(index) : candidates.ids[index]);
    }
    candidates.selected = ids_->front();
  }

 private:
  std::vector<int32_t>* ids_;
};

std::vector<int32_t> survivors(std::unique_ptr<SamplerStage> stage,
                               const std::vector<float>& logits) {
  std::vector<int32_t> ids;
  SamplerPipeline pipeline;
  pipeline.add(std::move(stage));
  pipeline.add(std::make_unique<CaptureStage>(&ids));
  pipeline.sample(logits, {});
  return ids;
}

std::vector<float> random_logits(size_t count, uint32_t seed, float spread = 3.0f) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

TEST(Philox, Random123KnownAnswers) {
  // The three "philox4x32 10" lines of Random123's tests/kat_vectors.
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32(0, Words{}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(~0ull, Words{~0u, ~0u, ~0u, ~0u}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      philox4x32(0x299f31d0a4093822ull, Words{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
      (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, UniformUsesEveryCoordinate) {
  const SampleContext context{.seed = 7, .position = (int64_t{3} << 32) + 11, .branch = 2};
  const auto words = philox4x32(7, {11, 5, 2, 4 + (3u << 16)});
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  EXPECT_EQ(philox_uniform(context, 5, 4), std::ldexp(static_cast<double>(bits), -53));
  SampleContext other = context;
  other.branch = 3;
  EXPECT_NE(philox_uniform(other, 5, 4), philox_uniform(context, 5, 4));
  other = context;
  other.seed = 8;
  EXPECT_NE(philox_uniform(other, 5, 4), philox_uniform(context, 5, 4));
  other = context;
  other.position = 11;
  EXPECT_NE(philox_uniform(other, 5, 4), philox_uniform(context, 5, 4));
  EXPECT_NE(philox_uniform(context, 6, 4), philox_uniform(context, 5, 4));
  EXPECT_NE(philox_uniform(context, 5, 5), philox_uniform(context, 5, 4));
}

TEST(Philox, UniformStaysInRange) {
  double sum = 0;
  for (int position = 0; position < 100000; ++position) {
    const double value = philox_uniform({.seed = 1, .position = position}, 5, 0);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / 100000, 0.5, 5 * std::sqrt(1.0 / 12 / 100000));
}

// ---- Surviving sets ---------------------------------------------------------------------------

TEST(TopK, KeepsExactlyKWithTiesByLowerId) {
  EXPECT_EQ(survivors(make_top_k_stage(3), {1, 5, 2, 2, 2, 7}), (std::vector<int32_t>{1, 2, 5}));
  EXPECT_EQ(survivors(make_top_k_stage(2), {4, 4, 4, 4}), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(survivors(make_top_k_stage(1), {-0.0f, 0.0f}), (std::vector<int32_t>{0}));
  EXPECT_EQ(survivors(make_top_k_stage(3), {-kInfinity, 1, -kInfinity, 0, -kInfinity}),
            (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(survivors(make_top_k_stage(9), {1, 2}), (std::vector<int32_t>{0, 1}));
}

TEST(TopK, EqualsAFullSort) {
  for (const size_t count : {1000u, 5000u, 20011u}) {
    for (const int order : {0, 1, 2}) {
      std::vector<float> logits = random_logits(count, static_cast<uint32_t>(count), 2.0f);
      for (float& logit : logits) logit = std::round(logit * 64) / 64;  // many ties
      if (order == 1) std::sort(logits.begin(), logits.end());
      if (order == 2) std::sort(logits.rbegin(), logits.rend());
      std::vector<int32_t> ids(count);
      std::iota(ids.begin(), ids.end(), 0);
      std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
        return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
      });
      for (const int k : {1, 2, 40, 511, 512, 513, 900}) {
        std::vector<int32_t> expected(ids.begin(), ids.begin() + k);
        std::sort(expected.begin(), expected.end());
        EXPECT_EQ(survivors(make_top_k_stage(k), logits), expected) << count << " " << k;
      }
    }
  }
}

TEST(TopP, KeepsTheSmallestSetThatReachesP) {
  const std::vector<float> four{0, 0, 0, 0};
  EXPECT_EQ(survivors(make_top_p_stage(0.5f), four), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(survivors(make_top_p_stage(0.51f), four), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(survivors(make_top_p_stage(1e-6f), four), (std::vector<int32_t>{0}));
  EXPECT_EQ(survivors(make_top_p_stage(1.0f), four).size(), 4u);
  const std::vector<float> uneven{std::log(0.1f), std::log(0.6f), -kInfinity, std::log(0.3f)};
  EXPECT_EQ(survivors(make_top_p_stage(0.5f), uneven), (std::vector<int32_t>{1}));
  EXPECT_EQ(survivors(make_top_p_stage(0.7f), uneven), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(survivors(make_top_p_stage(0.99f), uneven), (std::vector<int32_t>{0, 1, 3}));
}

TEST(MinP, KeepsWhatIsNearTheBest) {
  const std::vector<float> logits{std::log(0.5f), std::log(0.26f), std::log(0.24f), -kInfinity};
  EXPECT_EQ(survivors(make_min_p_stage(0.5f), logits), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(survivors(make_min_p_stage(0.4f), logits), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(survivors(make_min_p_stage(0.0f), logits), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(survivors(make_min_p_stage(1.0f), {2, 3, 3}), (std::vector<int32_t>{1, 2}));
}

TEST(Greedy, LargestWithTiesByLowerId) {
  SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = 0});
  EXPECT_TRUE(pipeline.is_device_greedy());
  EXPECT_EQ(pipeline.sample(std::vector<float>{1, 9, 3, 9}, {}), 1);
  EXPECT_EQ(pipeline.sample(std::vector<float>{-kInfinity, -0.0f, 0.0f}, {}), 1);
  pipeline.add(make_greedy_stage());
  EXPECT_FALSE(pipeline.is_device_greedy());
}

TEST(Temperature, ExtremesLeaveADistribution) {
  for (const float temperature : {1e-40f, 1e-30f, 1e30f}) {
    for (const float scale : {1.0f, 1e30f, -1e30f}) {
      SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = temperature});
      const int32_t id = pipeline.sample(std::vector<float>{scale, 2 * scale}, {.seed = 3});
      if (temperature < 1) {
        EXPECT_EQ(id, scale > 0 ? 1 : 0) << temperature << " " << scale;
      }
    }
  }
}

// ---- A constraint's mask -----------------------------------------------------------------------

std::vector<uint32_t> mask_of(const std::vector<int32_t>& ids, size_t words) {
  std::vector<uint32_t> mask(words);
  for (const int32_t id : ids) mask[static_cast<size_t>(id) / 32] |= 1u << id % 32;
  return mask;
}

TEST(Mask, LeavesTheAllowedTokens) {
  for (const size_t count : {5u, 32u, 33u, 1000u}) {
    for (const size_t share : {2u, 40u}) {  // a long list of allowed tokens, and a short one
      for (const bool is_sparse : {false, true}) {
        std::vector<float> logits = random_logits(count, 77);
        logits[count / 2] = -kInfinity;
        std::vector<int32_t> allowed, expected;
        for (size_t id = 0; id < count; ++id) {
          if (id % share != 0) continue;
          allowed.push_back(static_cast<int32_t>(id));
          if (id != count / 2) expected.push_back(static_cast<int32_t>(id));
        }
        std::vector<int32_t> ids;
        SamplerPipeline pipeline;
        if (is_sparse) pipeline.add(make_min_p_stage(0));
        pipeline.add(make_constraint_stage());
        pipeline.add(make_min_p_stage(0));  // drops what is ruled out
        pipeline.add(std::make_unique<CaptureStage>(&ids));
        const std::vector<uint32_t> mask = mask_of(allowed, (count + 31) / 32);
        pipeline.set_allowed_tokens(mask);
        pipeline.sample(logits, {});
        EXPECT_EQ(ids, expected) << count << " " << share << " " << is_sparse;
        pipeline.sample(logits, {});  // a mask serves once
        EXPECT_EQ(ids.size(), count - 1);
      }
    }
  }
}

TEST(Mask, StandsBeforeTheFilters) {
  // The only allowed token is the least probable one; every filter alone would drop it.
  std::vector<float> logits(300);
  std::iota(logits.rbegin(), logits.rend(), 0.0f);
  for (const float temperature : {0.0f, 0.7f}) {
    SamplerPipeline pipeline = SamplerPipeline::from_options(
        {.temperature = temperature, .top_k = 1, .top_p = 0.1f, .min_p = 1.0f});
    EXPECT_EQ(pipeline.is_device_greedy(), temperature == 0);
    const std::vector<uint32_t> mask = mask_of({299}, 10);
    pipeline.set_allowed_tokens(mask);
    EXPECT_FALSE(pipeline.is_device_greedy());
    EXPECT_EQ(pipeline.sample(logits, {.seed = 1}), 299);
    EXPECT_EQ(pipeline.decision().candidates, 1);
    EXPECT_EQ(pipeline.decision().probability, 1.0f);
    EXPECT_EQ(pipeline.sample(logits, {.seed = 1}), 0);
    EXPECT_FALSE(pipeline.is_device_greedy()) << "what was constrained reads its logits back";
  }
}

TEST(Mask, MistakesAreNamed) {
  const std::vector<float> logits{1, 2, -kInfinity};
  SamplerPipeline pipeline = SamplerPipeline::from_options({});
  // Only ids outside the vocabulary, only a token that the model rules out, none at all.
  for (const std::vector<uint32_t>& mask : {mask_of({3, 40}, 2), mask_of({2}, 1), mask_of({}, 1)}) {
    pipeline.set_allowed_tokens(mask);
    const std::string message = error_of([&] { pipeline.sample(logits, {.position = 9}); });
    EXPECT_NE(message.find("'constraint' at position 9: the constraint allows no token of the 3"),
              std::string::npos)
        << message;
  }
  // Ids beyond a mask that is too short are not allowed.
  std::vector<float> many(100);
  many[99] = 50;
  const std::vector<uint32_t> short_mask = mask_of({7}, 1);
  pipeline.set_allowed_tokens(short_mask);
  EXPECT_EQ(pipeline.sample(many, {}), 7);
  EXPECT_NE(error_of([&] { pipeline.set_allowed_tokens({}); }), "");
  SamplerPipeline unconstrained;
  unconstrained.add(make_greedy_stage());
  EXPECT_NE(error_of([&] { unconstrained.set_allowed_tokens(short_mask); }).find("'constraint'"),
            std::string::npos);
}

// Behind top-k the stage sees few candidates; before it, all of them.
TEST(Sampler, RefusesWhatAHostsStageLeaves) {
  class SpoilStage : public SamplerStage {
   public:
    explicit SpoilStage(float value) : value_(value) {}
    std::string_view name() const override { return "spoil"; }
    uint32_t stage_id() const override { return kFirstHostStageId; }
    void apply(Candidates& candidates, const SampleContext&) override {
      candidates.logits.back() = value_;
    }
    float value_;
  };
  const std::vector<float> logits{1, 2, 3, 0};
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    for (const bool is_last : {false, true}) {
      SamplerPipeline pipeline;
      if (is_last) pipeline.add(make_top_k_stage(2));
      pipeline.add(std::make_unique<SpoilStage>(value));
      pipeline.add(make_greedy_stage());
      const std::string message = error_of([&] { pipeline.sample(logits, {.position = 4}); });
      EXPECT_NE(message.find("position 4"), std::string::npos) << message;
      EXPECT_NE(message.find("stage 'spoil' left it"), std::string::npos) << message;
      EXPECT_NE(message.find(is_last ? "token 2 is" : "token 3 is"), std::string::npos) << message;
    }
  }
  SamplerPipeline pipeline;
  pipeline.add(std::make_unique<SpoilStage>(-kInfinity));
  pipeline.add(make_greedy_stage());
  EXPECT_EQ(pipeline.sample(logits, {}), 2);
}

TEST(Mask, ForcedTokensAreKnownToTheStages) {
  struct Seen {
    bool is_forced = false;
    std::vector<int64_t> positions;
  } seen;
  class WatchStage : public SamplerStage {
   public:
    explicit WatchStage(Seen* seen) : seen_(seen) {}
    std::string_view name() const override { return "watch"; }
    uint32_t stage_id() const override { return kFirstHostStageId; }
    void apply(Candidates&, const SampleContext& context) override {
      *seen_ = {context.is_forced,
                {context.forced_positions.begin(), context.forced_positions.end()}};
    }

   private:
    Seen* seen_;
  };
  using Positions = std::vector<int64_t>;
  SamplerPipeline pipeline;
  pipeline.add(std::make_unique<WatchStage>(&seen));
  pipeline.add(make_constraint_stage());
  pipeline.add(make_greedy_stage());
  const std::vector<float> logits{1, 2, 3};
  const std::vector<uint32_t> one = mask_of({1}, 1), two = mask_of({1, 2}, 1);
  const auto sample = [&](int64_t position, const std::vector<uint32_t>& mask, bool is_forced) {
    pipeline.set_allowed_tokens(mask, is_forced);
    pipeline.sample(logits, {.position = position});
    EXPECT_EQ(seen.is_forced, is_forced);
  };
  sample(5, one, true);
  sample(6, two, false);
  EXPECT_EQ(seen.positions, (Positions{5}));
  sample(7, one, true);
  pipeline.mark_forced(8, 2);  // a jump forward
  sample(10, two, false);
  EXPECT_EQ(seen.positions, (Positions{5, 7, 8, 9}));
  sample(8, two, false);  // three tokens were taken back
  EXPECT_EQ(seen.positions, (Positions{5, 7}));
  sample(9, two, false);
  EXPECT_EQ(seen.positions, (Positions{5, 7}));
}

// ---- The draw ---------------------------------------------------------------------------------

TEST(Draw, NeverDrawsARuledOutToken) {
  std::vector<float> logits(16, -kInfinity);
  logits[9] = -50.0f;
  SamplerPipeline pipeline = SamplerPipeline::from_options({});
  for (int position = 0; position < 1000; ++position) {
    EXPECT_EQ(pipeline.sample(logits, {.seed = 2, .position = position}), 9);
  }
}

TEST(Draw, DependsOnItsCoordinatesOnly) {
  const std::vector<float> logits = random_logits(500, 21, 1.0f);
  const std::vector<float> others = random_logits(700, 22, 1.0f);
  const SamplerOptions options{.temperature = 0.9f, .top_k = 100, .top_p = 0.95f, .min_p = 0.01f};
  SamplerPipeline one = SamplerPipeline::from_options(options);
  SamplerPipeline two = SamplerPipeline::from_options(options);
  std::vector<int32_t> forward, backward;
  for (int position = 0; position < 100; ++position) {
    forward.push_back(one.sample(logits, {.seed = 5, .position = position}));
  }
  for (int position = 99; position >= 0; --position) {
    two.sample(others, {.seed = 6, .position = position});
    backward.push_back(two.sample(logits, {.seed = 5, .position = position}));
  }
  std::reverse(backward.begin(), backward.end());
  EXPECT_EQ(forward, backward);
  EXPECT_GT(std::set<int32_t>(forward.begin(), forward.end()).size(), 20u);
}

// ---- Hosts, memory, mistakes ------------------------------------------------------------------

TEST(HostStage, RunsInThePipeline) {
  SamplerPipeline pipeline;
  pipeline.add(make_top_k_stage(2));
  pipeline.add(std::make_unique<NoRepeatStage>());
  pipeline.add(make_greedy_stage());
  const std::vector<float> logits{1, 8, 2, 5};
  const std::vector<int32_t> history{0, 1};
  EXPECT_EQ(pipeline.sample(logits, {}), 1);
  EXPECT_EQ(pipeline.sample(logits, {.history = history}), 3);
}

TEST(Pipeline, AllocatesOnlyForTheFirstVocabulary) {
  const std::vector<float> logits = random_logits(150000, 3, 2.0f);
  const std::vector<float> flat = random_logits(150000, 4, 0.1f);
  const std::vector<SamplerOptions> all = {
      {.temperature = 0},
      {},
      {.top_p = 0.95f},
      {.min_p = 0.05f},
      {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f}};
  for (const SamplerOptions& options : all) {
    SamplerPipeline pipeline = SamplerPipeline::from_options(options);
    pipeline.sample(logits, {});
    const size_t before = allocation_count;
    for (int position = 0; position < 5; ++position) {
      pipeline.sample(logits, {.position = position});
      pipeline.sample(flat, {.position = position});
    }
    EXPECT_EQ(allocation_count, before);
  }
}

TEST(Pipeline, BadLogitsNameThePosition) {
  SamplerPipeline pipeline = SamplerPipeline::from_options({.top_k = 2});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const SampleContext context{.position = 42};
  std::string message = error_of([&] { pipeline.sample(std::vector<float>{1, 2, nan}, context); });
  EXPECT_NE(message.find("position 42"), std::string::npos) << message;
  EXPECT_NE(message.find("token 2 is NaN"), std::string::npos) << message;
  message = error_of([&] { pipeline.sample(std::vector<float>{1, kInfinity}, context); });
  EXPECT_NE(message.find("token 1 is +infinity"), std::string::npos) << message;
  message = error_of([&] { pipeline.sample(std::vector<float>(4, -kInfinity), context); });
  EXPECT_NE(message.find("position 42"), std::string::npos) << message;
  message = error_of([&] { pipeline.sample(std::vector<float>{}, context); });
  EXPECT_NE(message.find("position 42"), std::string::npos) << message;
  SamplerPipeline selects_nothing;
  selects_nothing.add(make_top_k_stage(1));
  message = error_of([&] { selects_nothing.sample(std::vector<float>{1, 2}, context); });
  EXPECT_NE(message.find("selected nothing"), std::string::npos) << message;
  EXPECT_EQ(pipeline.sample(std::vector<float>{0, -kInfinity}, context), 0);
}

TEST(Pipeline, SaysHowItDecided) {
  const std::vector<float> logits = {1, 4, -kInfinity, 3, 2};
  SamplerPipeline greedy = SamplerPipeline::from_options({.temperature = 0});
  EXPECT_EQ(greedy.sample(logits, {}), 1);
  EXPECT_EQ(greedy.decision().candidates, 1);
  EXPECT_EQ(greedy.decision().probability, 1.0f);
  for (const int32_t top_k : {0, 2, 4}) {
    SamplerPipeline pipeline = SamplerPipeline::from_options({.temperature = 2, .top_k = top_k});
    const size_t left = top_k == 0 ? 4 : static_cast<size_t>(top_k);
    const std::vector<int32_t> best = {1, 3, 4, 0};
    double total = 0;
    for (size_t i = 0; i < left; ++i) total += std::exp(logits[static_cast<size_t>(best[i])] / 2.0);
    std::set<int32_t> seen;
    for (int64_t position = 0; position < 200; ++position) {
      const int32_t id = pipeline.sample(logits, {.seed = 3, .position = position});
      seen.insert(id);
      EXPECT_EQ(pipeline.decision().candidates, static_cast<int32_t>(left));
      EXPECT_NEAR(pipeline.decision().probability,
                  std::exp(logits[static_cast<size_t>(id)] / 2.0) / total, 1e-6);
    }
    EXPECT_EQ(seen.size(), left);
  }
}

TEST(Pipeline, OptionsOutOfRangeAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<SamplerOptions, std::string>> cases = {
      {{.temperature = -1}, "temperature is -1"},
      {{.temperature = nan}, "temperature is nan"},
      {{.temperature = kInfinity}, "temperature is inf"},
      {{.top_k = -3}, "top_k is -3"},
      {{.top_p = 0}, "top_p is 0"},
      {{.top_p = 1.5f}, "top_p is 1.5"},
      {{.top_p = nan}, "top_p is nan"},
      {{.min_p = -0.1f}, "min_p is -0.1"},
      {{.min_p = 1.1f}, "min_p is 1.1"},
      {{.temperature = 0, .top_k = -1}, "top_k is -1"}};
  for (const auto& [options, expected] : cases) {
    const std::string message = error_of([&] { SamplerPipeline::from_options(options); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << message;
  }
  EXPECT_NE(error_of([] { SamplerPipeline().add(nullptr); }), "");
}

}  // namespace
}  // namespace vitrine
