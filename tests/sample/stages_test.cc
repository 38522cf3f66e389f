// SPDX-License-Identifier: Apache-2.0
// Orders, options as text, state across tokens, and mistakes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "vitrine/sample.h"

namespace vitrine {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
using Names = std::vector<std::string>;

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "no error";
}

std::vector<float> random_logits(size_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  std::vector<float> logits(count);
  for (float& logit : logits) logit = normal(engine);
  return logits;
}

SamplerOptions everything() {
  return {.temperature = 0.8f,
          .top_k = 40,
          .top_p = 0.95f,
          .min_p = 0.05f,
          .seed = 9,
          .typical_p = 0.97f,
          .top_n_sigma = 2.5f,
          .xtc_probability = 0.3f,
          .xtc_threshold = 0.2f,
          .dynamic_temperature = 0.25f,
          .dynamic_temperature_exponent = 1.5f,
          .repetition_penalty = 1.1f,
          .frequency_penalty = 0.1f,
          .presence_penalty = -0.2f,
          .penalty_window = 64,
          .penalty_exempt = {3, 4},
          .dry_multiplier = 0.7f,
          .dry_base = 1.5f,
          .dry_allowed_length = 3,
          .dry_penalty_last_n = 256,
          .dry_sequence_breakers = {{5}, {6, 7}},
          .logit_bias = {{8, -1.25f}, {9, -kInfinity}},
          .ban = {{10}, {11, 12}}};
}

Names stage_names(const SamplerOptions& options) {
  Names names;
  const SamplerPipeline pipeline = SamplerPipeline::from_options(options);
  for (const auto& stage : pipeline.stages()) names.emplace_back(stage->name());
  return names;
}

TEST(Order, DefaultAndGiven) {
  const Names edits = {"logit_bias", "ban", "penalties", "dry", "constraint"};
  const Names filters = {"top_n_sigma", "top_k", "typical_p", "top_p", "min_p", "xtc"};
  Names expected = edits;
  expected.emplace_back("dynamic_temperature");
  expected.insert(expected.end(), filters.begin(), filters.end());
  expected.emplace_back("draw");
  SamplerOptions options = everything();
  EXPECT_EQ(stage_names(options), expected);
  options.dynamic_temperature = 0;
  expected[5] = "temperature";
  EXPECT_EQ(stage_names(options), expected);

  EXPECT_EQ(stage_names({}), (Names{"constraint", "temperature", "draw"}));
  EXPECT_EQ(stage_names({.temperature = 0, .top_k = 5, .presence_penalty = 1}),
            (Names{"penalties", "constraint", "greedy"}));
  options.mirostat = 2;
  Names with_mirostat = edits;
  with_mirostat.insert(with_mirostat.end(), {"temperature", "mirostat"});
  EXPECT_EQ(stage_names(options), with_mirostat) << "filters are off, as in llama.cpp";
  options.samplers = {"top_k", "temperature"};
  EXPECT_EQ(stage_names(options), (Names{"constraint", "top_k", "temperature", "mirostat"}));
  options.mirostat = 0;
  options.samplers = {"temperature", "constraint", "min_p", "top_k"};
  EXPECT_EQ(stage_names(options), (Names{"temperature", "constraint", "min_p", "top_k", "draw"}));
}

TEST(Order, DecidesWhatComesOut) {
  // Cold, the best token is all that is left of p; hot, three are.
  const std::vector<float> logits = {2, 1, 0, -1};
  const auto left = [&](Names order) {
    SamplerPipeline pipeline = SamplerPipeline::from_options(
        {.temperature = 0.2f, .top_p = 0.9f, .samplers = std::move(order)});
    pipeline.sample(logits, {});
    return pipeline.decision().candidates;
  };
  EXPECT_EQ(left({"temperature", "top_p"}), 1);
  EXPECT_EQ(left({"top_p", "temperature"}), 3);
}

TEST(Order, MistakesAreNamed) {
  const auto refuse = [](Names order) {
    return error_of([&] { SamplerPipeline::from_options({.top_k = 2, .samplers = order}); });
  };
  EXPECT_NE(refuse({"top_k", "tpo_p"}).find("'tpo_p', which is no stage"), std::string::npos);
  EXPECT_NE(refuse({"top_k", "min_p", "top_k"}).find("'top_k' twice"), std::string::npos);
  EXPECT_NE(refuse({"min_p", "constraint"}).find("'constraint' behind 'min_p'"), std::string::npos);
  EXPECT_NE(refuse({"draw"}).find("no stage"), std::string::npos);
  EXPECT_NE(refuse({""}).find("no stage"), std::string::npos);
}

TEST(Options, SurviveAsText) {
  for (const SamplerOptions& options :
       {everything(), SamplerOptions{}, SamplerOptions{.temperature = 0, .top_k = 7},
        SamplerOptions{.mirostat = 2, .mirostat_tau = 3.25f, .mirostat_eta = 0.05f},
        SamplerOptions{.top_k = 3, .samplers = {"top_k", "temperature"}}}) {
    const auto values = sampler_option_values(options);
    SamplerOptions again;
    again.seed = options.seed;
    for (const auto& [name, value] : values) set_sampler_option(again, name, value);
    EXPECT_EQ(sampler_option_values(again), values);
    SamplerPipeline one = SamplerPipeline::from_options(options);
    SamplerPipeline two = SamplerPipeline::from_options(again);
    const std::vector<float> logits = random_logits(300, 4);
    std::vector<int32_t> history = {20};
    for (int position = 1; position < 60; ++position) {
      const SampleContext context{.seed = 3, .position = position, .history = history};
      const int32_t id = one.sample(logits, context);
      ASSERT_EQ(two.sample(logits, context), id);
      EXPECT_EQ(two.decision().probability, one.decision().probability);
      history.push_back(id);
    }
  }
}

TEST(Options, ReadsEachForm) {
  SamplerOptions options;
  set_sampler_option(options, "logit_bias", "5=-1.5");
  set_sampler_option(options, "logit_bias", "7=+2;9=-inf");
  EXPECT_EQ(options.logit_bias,
            (std::vector<std::pair<int32_t, float>>{{5, -1.5f}, {7, 2.0f}, {9, -kInfinity}}));
  set_sampler_option(options, "ban", "3");
  set_sampler_option(options, "ban", "4,5");
  EXPECT_EQ(options.ban, (std::vector<std::vector<int32_t>>{{3}, {4, 5}}));
  set_sampler_option(options, "samplers", "top-k;temperature,min_p");
  EXPECT_EQ(options.samplers, (Names{"top_k", "temperature", "min_p"}));
  set_sampler_option(options, "seed", "18446744073709551615");
  EXPECT_EQ(options.seed, ~uint64_t{0});
  for (const auto& [name, value] :
       std::vector<std::pair<std::string, std::string>>{{"logit_bias", "5"},
                                                        {"logit_bias", "x=1"},
                                                        {"logit_bias", "5=1=2"},
                                                        {"ban", ""},
                                                        {"ban", "1,,2"},
                                                        {"ban", "2.5"},
                                                        {"top_k", "many"},
                                                        {"top_k", "99999999999"},
                                                        {"temperature", ""},
                                                        {"temperature", "0.5x"},
                                                        {"seed", "-1"},
                                                        {"penalty_exempt", "-"},
                                                        {"no_such_option", "1"}}) {
    const std::string message = error_of([&] { set_sampler_option(options, name, value); });
    EXPECT_NE(message.find(name + " is "), std::string::npos) << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << message;
  }
}

TEST(Options, OutOfRangeIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<SamplerOptions, std::string>> cases = {
      {{.typical_p = 0}, "typical_p is 0"},
      {{.top_n_sigma = -1}, "top_n_sigma is -1"},
      {{.xtc_probability = 1.5f}, "xtc_probability is 1.5"},
      {{.xtc_threshold = -0.1f}, "xtc_threshold is -0.1"},
      {{.dynamic_temperature = -1}, "dynamic_temperature is -1"},
      {{.dynamic_temperature_exponent = 0}, "dynamic_temperature_exponent is 0"},
      {{.temperature = 0, .dynamic_temperature = nan}, "dynamic_temperature is nan"},
      {{.mirostat = 1}, "mirostat is 1"},
      {{.mirostat_tau = 0}, "mirostat_tau is 0"},
      {{.mirostat_eta = -1}, "mirostat_eta is -1"},
      {{.repetition_penalty = 0}, "repetition_penalty is 0"},
      {{.frequency_penalty = nan}, "frequency_penalty is nan"},
      {{.presence_penalty = kInfinity}, "presence_penalty is inf"},
      {{.penalty_window = -2}, "penalty_window is -2"},
      {{.penalty_exempt = {-1}}, "penalty_exempt is for id -1"},
      {{.dry_multiplier = -1}, "dry_multiplier is -1"},
      {{.dry_base = 0.5f}, "dry_base is 0.5"},
      {{.dry_allowed_length = 0}, "dry_allowed_length is 0"},
      {{.dry_penalty_last_n = -2}, "dry_penalty_last_n is -2"},
      {{.logit_bias = {{-4, 1}}}, "logit_bias is for id -4"},
      {{.logit_bias = {{4, kInfinity}}}, "logit_bias is for id 4 inf"},
      {{.logit_bias = {{4, 1}, {4, 2}}}, "given twice for id 4"},
      {{.ban = {{}}}, "ban is a sequence of no id"}};
  for (const auto& [options, expected] : cases) {
    const std::string message = error_of([&] { SamplerPipeline::from_options(options); });
    EXPECT_NE(message.find(expected), std::string::npos) << message;
    EXPECT_NE(message.find("expected"), std::string::npos) << message;
  }
  for (const SamplerOptions& options :
       {SamplerOptions{.logit_bias = {{100, 1.0f}}}, SamplerOptions{.ban = {{3, 100}}},
        SamplerOptions{.penalty_exempt = {100}}}) {
    EXPECT_NE(error_of([&] { check_sampler_options(options, 100); }).find("for id 100"),
              std::string::npos);
    check_sampler_options(options, 101);
  }
  // Without that check, the first step says it.
  for (const SamplerOptions& options :
       {SamplerOptions{.logit_bias = {{50, 1.0f}}}, SamplerOptions{.ban = {{50}}}}) {
    SamplerPipeline pipeline = SamplerPipeline::from_options(options);
    EXPECT_NE(error_of([&] { pipeline.sample(std::vector<float>(50), {}); }).find("id 50"),
              std::string::npos);
  }
}

TEST(Penalties, StayAwayFromForcedTokens) {
  const std::vector<float> logits = {1, 2, 3, 4};
  const std::vector<uint32_t> all = {0xf};
  const std::vector<int32_t> history = {3, 3, 2};
  for (const SamplerOptions& options :
       {SamplerOptions{.temperature = 0, .presence_penalty = 9},
        // 2 is followed by nothing yet; 3 repeats 3.
        SamplerOptions{.temperature = 0, .presence_penalty = 9, .dry_multiplier = 5}}) {
    const SampleContext context{.position = 3, .history = history};
    SamplerPipeline pipeline = SamplerPipeline::from_options(options);
    EXPECT_EQ(pipeline.sample(logits, context), 1);
    pipeline.set_allowed_tokens(all, true);
    EXPECT_EQ(pipeline.sample(logits, context), 3) << "no penalty at a forced step";
    pipeline.mark_forced(0, 2);
    EXPECT_EQ(pipeline.sample(logits, context), 3) << "forced tokens don't count";
    pipeline.mark_forced(1, 1);  // forgets position 1 and what follows, and marks it again
    EXPECT_EQ(pipeline.sample(logits, {.position = 3, .history = history}), 3);
    pipeline.mark_forced(0, 0);
    EXPECT_EQ(pipeline.sample(logits, context), 1);
    EXPECT_THROW(pipeline.mark_forced(-1, 1), Error);
    EXPECT_THROW(pipeline.mark_forced(0, -1), Error);
    EXPECT_THROW(pipeline.mark_forced(0, std::numeric_limits<int64_t>::max()), Error);
  }
  SamplerPipeline exempt = SamplerPipeline::from_options(
      {.temperature = 0, .presence_penalty = 9, .penalty_exempt = {3}});
  EXPECT_EQ(exempt.sample(logits, {.position = 3, .history = history}), 3);
}

TEST(Dry, ForcedTokensBreakRepetitions) {
  const std::vector<float> logits(5);
  const std::vector<int32_t> history = {1, 2, 3, 4, 1, 2, 3};  // 4 would repeat 1 2 3
  const SamplerOptions options{.temperature = 0, .logit_bias = {{4, 1.0f}}};
  SamplerOptions with_dry = options;
  with_dry.dry_multiplier = 2;
  const SampleContext context{.position = 7, .history = history};
  EXPECT_EQ(SamplerPipeline::from_options(options).sample(logits, context), 4);
  SamplerPipeline pipeline = SamplerPipeline::from_options(with_dry);
  EXPECT_EQ(pipeline.sample(logits, context), 0);
  pipeline.mark_forced(5, 1);  // only 3 was repeated since
  EXPECT_EQ(pipeline.sample(logits, context), 4);
}

/// 30 tokens by a pipeline with all the state there is.
std::vector<int32_t> run(SamplerPipeline& pipeline, std::vector<int32_t> history, int count) {
  for (int i = 0; i < count; ++i) {
    const auto position = static_cast<int64_t>(history.size());
    const auto logits = random_logits(200, static_cast<uint32_t>(position));
    history.push_back(
        pipeline.sample(logits, {.seed = 8, .position = position, .history = history}));
  }
  return history;
}

TEST(State, ComesBackWithARollbackAndAFork) {
  for (const SamplerOptions& options :
       {SamplerOptions{.mirostat = 2, .mirostat_tau = 3, .mirostat_eta = 0.6f}, everything()}) {
    SamplerPipeline pipeline = SamplerPipeline::from_options(options);
    const std::vector<int32_t> first = run(pipeline, {1, 2}, 30);
    SamplerPipeline fork = pipeline.fork();
    const std::vector<int32_t> on = run(pipeline, first, 10);
    EXPECT_EQ(run(fork, first, 10), on);
    // Back to the 12th token, whichever pipeline and however far it was.
    const std::vector<int32_t> prefix(first.begin(), first.begin() + 12);
    EXPECT_EQ(run(pipeline, prefix, 20), first);
    EXPECT_EQ(run(fork, prefix, 20), first);
  }
  // The state matters: a pipeline that begins at the 12th token draws otherwise.
  const SamplerOptions options{.mirostat = 2, .mirostat_tau = 3, .mirostat_eta = 0.6f};
  SamplerPipeline whole = SamplerPipeline::from_options(options);
  const std::vector<int32_t> tokens = run(whole, {1, 2}, 60);
  SamplerPipeline late = SamplerPipeline::from_options(options);
  EXPECT_NE(run(late, {tokens.begin(), tokens.begin() + 12}, 50), tokens);
}

TEST(State, AHostsStageSaysWhetherItForks) {
  class Plain : public SamplerStage {
   public:
    std::string_view name() const override { return "plain"; }
    uint32_t stage_id() const override { return kFirstHostStageId; }
    void apply(Candidates&, const SampleContext&) override {}
  };
  SamplerPipeline pipeline;
  pipeline.add(std::make_unique<Plain>());
  try {
    pipeline.fork();
    FAIL() << "forked";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("'plain'"), std::string::npos);
  }
}

TEST(State, EveryStageSaysItsParameters) {
  const SamplerPipeline pipeline = SamplerPipeline::from_options(everything());
  for (const auto& stage : pipeline.stages()) {
    const bool has_none = stage->name() == "constraint" || stage->name() == "draw";
    EXPECT_EQ(stage->parameters().empty(), has_none) << stage->name();
    EXPECT_EQ(stage->parameters().find('\n'), std::string::npos);
  }
  EXPECT_EQ(pipeline.stages()[0]->parameters(), "8 -1.25, 9 -inf");
}

}  // namespace
}  // namespace vitrine
