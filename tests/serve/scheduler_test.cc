// SPDX-License-Identifier: Apache-2.0
// Answers that share steps, prefixes and a pool that is too small: each is the one that it is
// alone, to the bit.
#include <gtest/gtest.h>

#include "tests/serve/schedule_fixture.h"

namespace vitrine::testing {
namespace {

EngineOptions serving_options(int sequences, uint64_t kv_bytes = 0) {
  EngineOptions options = test_options(1, 16);
  options.max_context = 256;
  options.max_sequences = sequences + 1;
  options.max_step_tokens = 96;
  options.max_logit_rows = sequences;
  options.kv_bytes = kv_bytes;
  return options;
}

// Conversations: some begin alike, some go on where others ended, some are alone.
std::vector<AskedJob> conversations(int32_t vocab_size, int count) {
  const std::vector<int32_t> system = prompt_ids(110, vocab_size, 1000);
  std::vector<AskedJob> all;
  std::mt19937 rng(7);
  for (int i = 0; i < count; ++i) {
    AskedJob asked;
    if (i % 4 != 3) {
      const auto shared = static_cast<std::ptrdiff_t>(i % 3 == 2 ? 77 : system.size());
      asked.prompt.assign(system.begin(), system.begin() + shared);
    }
    const auto own =
        prompt_ids(1 + static_cast<int>(rng() % 70), vocab_size, static_cast<uint32_t>(i / 2) + 1);
    asked.prompt.insert(asked.prompt.end(), own.begin(), own.end());
    asked.max_new_tokens = 1 + static_cast<int>(rng() % 20);
    asked.temperature = i % 2 == 0 ? 0.0F : 0.9F;
    asked.seed = static_cast<uint64_t>(i);
    asked.arrival = 0.02 * static_cast<double>(rng() % 40);
    all.push_back(std::move(asked));
  }
  return all;
}

class SchedulerBits : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Engine> load(int sequences, uint64_t kv_bytes = 0) const {
    return Engine::load(oracle_folder(GetParam()), serving_options(sequences, kv_bytes));
  }
  /// With blocks for two of eight whole contexts.
  std::unique_ptr<Engine> load_small() const {
    auto engine = load(8);
    const int64_t blocks = engine->kv_blocks().second;
    for (uint64_t bytes = engine->options().kv_bytes; engine->kv_blocks().second > blocks * 2 / 9;
         bytes -= bytes / 40) {
      engine = load(8, bytes);
    }
    return engine;
  }
};

TEST_P(SchedulerBits, ColdWarmAndTogether) {
  const auto alone = load(6);
  const std::vector<AskedJob> asked = conversations(alone->summary().vocab_size, 24);
  const std::vector<GenerateResult> expected = answer_alone(*alone, asked);
  const auto engine = load(6);
  TimedStepper stepper(*engine);
  const auto free = engine->kv_blocks();
  int64_t cold = 0;
  for (const char* policy : {"hrrn", "fcfs", "priority", "fair"}) {
    SCOPED_TRACE(policy);
    ServerOptions options;
    options.policy = policy;
    serve::Scheduler scheduler(stepper, options, [&] { return stepper.now; });
    const std::vector<AnsweredJob> first = serve_all(stepper, asked, scheduler);
    expect_same_answers(expected, first);
    cold = std::exchange(stepper.computed, 0);
    expect_same_answers(expected, serve_all(stepper, asked, scheduler));  // warm now
    EXPECT_LT(stepper.computed, cold);
    EXPECT_GT(stepper.most_at_once, 3u);
    stepper.computed = 0;
  }
  EXPECT_EQ(engine->kv_blocks(), free);
}

TEST_P(SchedulerBits, InAPoolThatIsTooSmall) {
  const auto alone = load(8);
  const std::vector<AskedJob> asked = conversations(alone->summary().vocab_size, 24);
  const std::vector<GenerateResult> expected = answer_alone(*alone, asked);
  const auto engine = load_small();
  TimedStepper stepper(*engine);
  const auto free = engine->kv_blocks();
  {
    serve::Scheduler scheduler(stepper, {}, [&] { return stepper.now; });
    for (int turn = 0; turn < 2; ++turn) {
      expect_same_answers(expected, serve_all(stepper, asked, scheduler));
    }
    const ServerTelemetry told = scheduler.telemetry();
    EXPECT_GT(told.evicted_prefixes + told.preemptions, 0u);
    EXPECT_GT(told.evicted_prefixes, 0u);
  }
  EXPECT_EQ(engine->kv_blocks(), free);
}

// Nobody reads what the first twelve say for a while; others have the four places meanwhile, and
// their memory only where it is needed.
TEST_P(SchedulerBits, WhoseReaderIsBehindGivesItsPlace) {
  constexpr double kReadsFrom = 50;
  const auto alone = load(4);
  std::vector<AskedJob> asked = conversations(alone->summary().vocab_size, 24);
  for (size_t i = 0; i < asked.size(); ++i) {
    const bool is_slow = i < 12;
    asked[i].max_new_tokens = is_slow ? 12 : 6;
    asked[i].arrival = is_slow ? 0 : 1;
    asked[i].reads_from = is_slow ? kReadsFrom : 0;
  }
  const std::vector<GenerateResult> expected = answer_alone(*alone, asked);
  for (const bool has_memory : {false, true}) {
    SCOPED_TRACE(has_memory);
    const auto engine = load(has_memory ? 24 : 4);
    TimedStepper stepper(*engine);
    const auto free = engine->kv_blocks();
    {
      serve::Scheduler scheduler(stepper, {.max_running = 4}, [&] { return stepper.now; });
      const std::vector<AnsweredJob> answers = serve_all(stepper, asked, scheduler);
      expect_same_answers(expected, answers);
      for (size_t i = 0; i < answers.size(); ++i) {
        const bool is_slow = i < 12;
        EXPECT_EQ(answers[i].end > kReadsFrom, is_slow) << i;
        if (!is_slow || has_memory) {
          EXPECT_EQ(answers[i].preemptions, 0) << i;
        }
      }
      EXPECT_LE(stepper.most_at_once, 4u);
      EXPECT_EQ(scheduler.telemetry().paused, 0);
      EXPECT_GE(scheduler.telemetry().paused_readers, 12u);
      if (has_memory) {
        EXPECT_EQ(stepper.rerun, 0);
      }
    }
    EXPECT_EQ(engine->kv_blocks(), free);
  }
}

// What answers keep of before they gave their places is most of a pool that is too small, and the
// states and windows of it go to others: they let go of it for their own sake, too.
TEST_P(SchedulerBits, WhatIsKeptGivesWayToItsOwnAnswer) {
  constexpr double kReadsFrom = 5;
  const auto alone = load(8);
  std::vector<AskedJob> asked = conversations(alone->summary().vocab_size, 24);
  for (size_t i = 0; i < asked.size(); ++i) {
    asked[i].max_new_tokens = 20;
    asked[i].arrival = 0.1 * static_cast<double>(i);
    asked[i].reads_from = i % 3 == 2 ? 0 : kReadsFrom + 0.5 * static_cast<double>(i);
  }
  const std::vector<GenerateResult> expected = answer_alone(*alone, asked);
  const auto engine = load_small();
  TimedStepper stepper(*engine);
  const auto free = engine->kv_blocks();
  {
    serve::Scheduler scheduler(stepper, {.max_running = 3}, [&] { return stepper.now; });
    expect_same_answers(expected, serve_all(stepper, asked, scheduler));
    EXPECT_GE(scheduler.telemetry().paused_readers, 8u);
  }
  EXPECT_EQ(engine->kv_blocks(), free);
}

INSTANTIATE_TEST_SUITE_P(Models, SchedulerBits,
                         ::testing::Values("qwen3_moe", "qwen3_next", "gpt_oss", "gemma4_text",
                                           "lfm2_moe", "deepseek_v3"),
                         [](const auto& info) { return info.param; });

class SchedulerTest : public ::testing::Test {
 protected:
  explicit SchedulerTest(const char* model = "qwen3_moe")
      : engine_(Engine::load(oracle_folder(model), serving_options(8))), stepper_(*engine_) {}
  serve::Scheduler scheduler(const ServerOptions& options = {}) {
    return serve::Scheduler(stepper_, options, [this] { return stepper_.now; });
  }
  std::vector<int32_t> ids(int count, uint32_t seed) const {
    return prompt_ids(count, engine_->summary().vocab_size, seed);
  }
  std::unique_ptr<Engine> engine_;
  TimedStepper stepper_;
};

class HybridSchedulerTest : public SchedulerTest {
 protected:
  HybridSchedulerTest() : SchedulerTest("qwen3_next") {}
};

std::vector<AskedJob> burst(const std::vector<int32_t>& system, int count, int own,
                            int32_t vocab_size, uint32_t seed = 50) {
  std::vector<AskedJob> asked(static_cast<size_t>(count));
  for (size_t i = 0; i < asked.size(); ++i) {
    asked[i].prompt = system;
    const auto rest = prompt_ids(own, vocab_size, seed + static_cast<uint32_t>(i));
    asked[i].prompt.insert(asked[i].prompt.end(), rest.begin(), rest.end());
    asked[i].max_new_tokens = 4;
  }
  return asked;
}

TEST_F(SchedulerTest, AtOnceACommonBeginningIsComputedOnce) {
  const std::vector<AskedJob> asked = burst(ids(200, 3), 8, 20, engine_->summary().vocab_size);
  serve::Scheduler server(stepper_, {}, [this] { return stepper_.now; });
  const auto answers = serve_all(stepper_, asked, server);
  int64_t cached = 0;
  for (const AnsweredJob& answer : answers) cached += answer.cached_tokens;
  EXPECT_EQ(cached, 7 * 200);
  EXPECT_EQ(server.telemetry().computed_prompt_tokens + static_cast<uint64_t>(8 * 3 /* decoded */),
            static_cast<uint64_t>(stepper_.computed));
  EXPECT_EQ(stepper_.computed, 200 + 8 * 20 + 8 * 3);
}

TEST_F(HybridSchedulerTest, AtOnceACommonBeginningIsComputedOnce) {
  const std::vector<AskedJob> asked = burst(ids(200, 3), 8, 20, engine_->summary().vocab_size);
  serve::Scheduler server(stepper_, {}, [this] { return stepper_.now; });
  const auto answers = serve_all(stepper_, asked, server);
  EXPECT_EQ(stepper_.computed, 200 + 8 * 20 + 8 * 3);
  // A second burst of other requests begins at the state that was kept there.
  stepper_.computed = 0;
  auto again = burst(ids(200, 3), 8, 23, engine_->summary().vocab_size, 80);
  for (AskedJob& one : again) one.arrival = stepper_.now;
  serve_all(stepper_, again, server);
  EXPECT_EQ(stepper_.computed, 8 * 23 + 8 * 3);
}

TEST_F(SchedulerTest, TenantsShareNothing) {
  std::vector<AskedJob> asked = burst(ids(100, 3), 2, 10, engine_->summary().vocab_size);
  asked[1].tenant = "b";
  asked[1].arrival = 10;
  serve::Scheduler server(stepper_, {}, [this] { return stepper_.now; });
  EXPECT_EQ(serve_all(stepper_, asked, server)[1].cached_tokens, 0);
}

TEST_F(SchedulerTest, ALongPromptDelaysNobodysTokens) {
  std::vector<AskedJob> asked;
  for (uint32_t i = 0; i < 4; ++i) {
    asked.push_back({ids(5, i + 1), 60});
  }
  asked.push_back({ids(240, 9), 4});
  asked.back().arrival = 0.4;
  ServerOptions options;
  options.step_seconds = 0.03;
  serve::Scheduler server(stepper_, options, [this] { return stepper_.now; });
  const auto answers = serve_all(stepper_, asked, server);
  for (size_t i = 0; i < 4; ++i) {
    const std::vector<double>& times = answers[i].token_times;
    for (size_t j = 12; j < times.size(); ++j) EXPECT_LE(times[j] - times[j - 1], 0.0305);
  }
  EXPECT_LT(answers[4].first_token, answers[0].end);
}

// A cold request among hits would wait for ever if the policy alone decided.
TEST_F(SchedulerTest, NobodyStarves) {
  for (const char* policy : {"hrrn", "priority", "fair", "fcfs"}) {
    SCOPED_TRACE(policy);
    ServerOptions options;
    options.policy = policy;
    options.max_running = 1;
    options.max_wait_seconds = 2;
    serve::Scheduler server(stepper_, options, [this] { return stepper_.now; });
    const double begin = stepper_.now;
    std::vector<AskedJob> asked;
    for (int i = 0; i < 150; ++i) {  // more than can be served
      asked.push_back({ids(8, 100 + static_cast<uint32_t>(i)), 2});
      asked.back().arrival = begin + 0.02 * i;
      asked.back().tenant = "many" + std::to_string(i % 5);
    }
    asked.push_back({ids(240, 9), 2});
    asked.back().priority = 5;
    asked.back().arrival = begin + 0.1;
    asked.back().tenant = "many0";
    const auto answers = serve_all(stepper_, asked, server);
    // Those before it take less than half a second.
    EXPECT_LT(answers.back().began - asked.back().arrival, 2.5);
    double longest = 0;
    for (const AnsweredJob& answer : answers) longest = std::max(longest, answer.began - begin);
  }
}

TEST_F(SchedulerTest, TheShortestWaitCountsByWhatIsNotCached) {
  // One slot, and while it is taken a long and a short prompt arrive.
  for (const bool is_cached : {false, true}) {
    ServerOptions options;
    options.max_running = 1;
    serve::Scheduler server(stepper_, options, [this] { return stepper_.now; });
    const double begin = stepper_.now;
    std::vector<AskedJob> asked;
    asked.push_back({is_cached ? ids(200, 4) : ids(20, 5), 30});
    asked.push_back({ids(200, 4), 2});
    asked.push_back({ids(60, 6), 2});
    for (size_t i = 0; i < 3; ++i) asked[i].arrival = begin + 1e-6 * static_cast<double>(i);
    const auto answers = serve_all(stepper_, asked, server);
    EXPECT_EQ(answers[1].began < answers[2].began, is_cached);
  }
}

/// Seconds until the first tokens of requests of which few are cold, under a policy.
struct FirstTokens {
  double mean = 0, cold_p99 = 0;
};

FirstTokens serve_mixed(const char* policy) {
  EngineOptions engine_options = serving_options(12);
  engine_options.keep_logits = false;
  const auto engine = Engine::load(oracle_folder("qwen3_moe"), engine_options);
  TimedStepper stepper(*engine, 0.0055, 0.0007);
  ServerOptions options;
  options.policy = policy;
  options.max_wait_seconds = 30;
  serve::Scheduler server(stepper, options, [&] { return stepper.now; });
  std::vector<AskedJob> asked;
  std::mt19937 random(11);
  std::exponential_distribution<double> next(45);
  const auto system = prompt_ids(180, 256, 1);
  double at = 0;
  for (int i = 0; i < 1500; ++i) {
    AskedJob one;
    const bool is_cold = i % 400 > 383;  // 4 %, which come together
    if (!is_cold && i > 0) one.prompt = system;
    if (i == 0) one.prompt = system;
    const auto own = prompt_ids(is_cold ? 240 : 8, 256, 1000 + static_cast<uint32_t>(i));
    one.prompt.insert(one.prompt.end(), own.begin(), own.end());
    one.max_new_tokens = 2;
    one.arrival = at += next(random);
    asked.push_back(std::move(one));
  }
  const auto answers = serve_all(stepper, asked, server, /*logprobs=*/false);
  FirstTokens found;
  std::vector<double> cold;
  for (size_t i = 0; i < answers.size(); ++i) {
    const double first = answers[i].first_token - asked[i].arrival;
    found.mean += first / static_cast<double>(answers.size());
    if (i % 400 > 383) cold.push_back(first);
  }
  std::ranges::sort(cold);
  found.cold_p99 = cold[cold.size() * 99 / 100];
  return found;
}

// 96 % hits, and bursts of cold requests among them, in virtual time with SmolLM2's costs.
TEST(SchedulerPolicies, HitsDoNotWaitBehindColdRequests) {
  const FirstTokens fcfs = serve_mixed("fcfs"), hrrn = serve_mixed("hrrn");
  std::printf("fcfs: mean %.3f s, cold p99 %.3f s; hrrn: mean %.3f s, cold p99 %.3f s\n", fcfs.mean,
              fcfs.cold_p99, hrrn.mean, hrrn.cold_p99);
  EXPECT_LE(hrrn.mean, 0.4 * fcfs.mean);
  // Who is overtaken waits longer, by what overtakes: a server that never rests has no other time.
  EXPECT_LE(hrrn.cold_p99, 2 * fcfs.cold_p99);
}

TEST_F(SchedulerTest, OneThatFailsIsAlone) {
  std::vector<AskedJob> asked = burst(ids(10, 3), 4, 5, engine_->summary().vocab_size);
  asked[1].prompt.push_back(engine_->summary().vocab_size);  // no such token
  asked[2].prompt = ids(400, 4);                             // longer than the context
  serve::Scheduler server(stepper_, {}, [this] { return stepper_.now; });
  const auto answers = serve_all(stepper_, asked, server);
  for (const size_t i : {0, 3}) EXPECT_FALSE(answers[i].error) << answers[i].error->what();
  for (const size_t i : {1, 2}) {
    ASSERT_TRUE(answers[i].error);
    EXPECT_EQ(answers[i].error->kind(), ErrorKind::kInvalidArgument);
  }
}

TEST_F(SchedulerTest, OptionsOutOfRangeAreRefused) {
  const auto refused = [this](auto change) {
    ServerOptions options;
    change(options);
    try {
      serve::Scheduler server(stepper_, options, [] { return 0.0; });
      return std::string("nothing");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(refused([](ServerOptions& options) { options.policy = "best"; }),
            "server option 'policy' is 'best'; expected one of fair, fcfs, hrrn, priority");
  EXPECT_NE(refused([](ServerOptions& options) { options.max_running = 9; }).find("at most 8"),
            std::string::npos);
  EXPECT_NE(refused([](ServerOptions& options) { options.step_seconds = -1; }), "nothing");
  EXPECT_NE(refused([](ServerOptions& options) { options.max_wait_seconds = 0; }), "nothing");
}

}  // namespace
}  // namespace vitrine::testing
