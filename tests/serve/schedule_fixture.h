// SPDX-License-Identifier: Apache-2.0
// Jobs for a scheduler, in virtual time: a step takes what a cost model says.
#pragma once

#include <chrono>
#include <random>
#include <thread>

#include "serve/scheduler.h"
#include "tests/engine/engine_fixture.h"
#include "vitrine/generate.h"

namespace vitrine::testing {

/// Steps take a fixed time and a time a token, of a clock that nothing else moves.
class TimedStepper final : public ForwardingStepper {
 public:
  explicit TimedStepper(Stepper& stepper, double fixed = 0.01, double token = 0.001)
      : ForwardingStepper(stepper), fixed_(fixed), token_(token) {}
  std::span<const StepOutput> step(std::span<const StepInput> inputs) override {
    int64_t tokens = fits(inputs).rerun_tokens;
    rerun += tokens;
    for (const StepInput& input : inputs) tokens += std::ssize(input.tokens);
    now += fixed_ + token_ * static_cast<double>(tokens);
    computed += tokens;
    most_at_once = std::max(most_at_once, inputs.size());
    return ForwardingStepper::step(inputs);
  }
  double now = 0;
  int64_t computed = 0;
  int64_t rerun = 0;  // of these, tokens of sequences that had lost them
  size_t most_at_once = 0;

 private:
  double fixed_, token_;
};

/// What an answer is asked for with.
struct AskedJob {
  std::vector<int32_t> prompt;
  int max_new_tokens = 12;
  float temperature = 0;
  uint64_t seed = 0;
  double arrival = 0;
  int priority = 0;
  std::string tenant = {};
  bool use_cache = true;
  int adapter = -1;
  double reads_from = 0;  // until then its reader is behind once it has a few tokens
};

/// What came of it.
struct AnsweredJob {
  GenerateResult result;
  std::optional<Error> error;
  bool has_ended = false;
  int64_t cached_tokens = 0, preemptions = 0;
  double began = -1, first_token = -1, end = -1;
  std::vector<double> token_times = {};
};

inline GenerateOptions options_of(const AskedJob& asked, bool logprobs) {
  GenerateOptions options;
  options.max_new_tokens = asked.max_new_tokens;
  options.ignore_end_of_text = true;
  options.sampler.temperature = asked.temperature;
  options.sampler.seed = asked.seed;
  if (asked.seed % 3 == 1) options.sampler.repetition_penalty = 1.2F;
  if (logprobs) options.logprobs = 2;
  return options;
}

/// Runs jobs to their ends as they arrive.
inline std::vector<AnsweredJob> serve_all(TimedStepper& stepper, const std::vector<AskedJob>& asked,
                                          serve::Scheduler& scheduler, bool logprobs = true) {
  std::vector<AnsweredJob> answers(asked.size());
  std::vector<size_t> order(asked.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {}, [&](size_t i) { return asked[i].arrival; });
  size_t next = 0;
  for (int turn = 0; turn < 100000; ++turn) {
    for (; next < order.size() && asked[order[next]].arrival <= stepper.now; ++next) {
      const AskedJob& one = asked[order[next]];
      AnsweredJob& answer = answers[order[next]];
      auto job = std::make_unique<serve::Job>();
      job->prompt = one.prompt;
      job->options = options_of(one, logprobs);
      job->priority = one.priority;
      job->tenant = job->cache_scope = one.tenant;
      job->use_cache = one.use_cache;
      job->adapter = one.adapter;
      job->ready = one.arrival;
      job->on_begin = [&stepper, &answer](int64_t cached) {
        answer.began = stepper.now;
        answer.cached_tokens = cached;
      };
      job->is_paused = [&stepper, &answer, from = one.reads_from] {
        return stepper.now < from && answer.token_times.size() >= 3;
      };
      job->on_token = [&stepper, &answer](const TokenEvent&) {
        if (answer.first_token < 0) answer.first_token = stepper.now;
        answer.token_times.push_back(stepper.now);
        return true;
      };
      job->on_end = [&stepper, &answer](serve::JobEnd end) {
        EXPECT_FALSE(answer.has_ended);
        answer.has_ended = true;
        answer.result = std::move(end.result);
        answer.error = std::move(end.error);
        answer.preemptions = end.preemptions;
        answer.end = stepper.now;
      };
      scheduler.add(std::move(job));
    }
    if (scheduler.step()) continue;
    // The store's thread works in the clock's own time.
    if (scheduler.awaits_store() || scheduler.is_storing()) {
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      continue;
    }
    if (next == order.size() && scheduler.is_idle()) return answers;
    const bool has_next = next < order.size() && asked[order[next]].arrival > stepper.now;
    stepper.now = has_next ? asked[order[next]].arrival : stepper.now + 0.1;
  }
  ADD_FAILURE() << "somebody never ends";
  return answers;
}

/// The same answers, each alone on a cold engine.
inline std::vector<GenerateResult> answer_alone(Engine& engine, const std::vector<AskedJob>& asked,
                                                bool logprobs = true) {
  std::vector<GenerateResult> results;
  for (const AskedJob& one : asked) {
    results.push_back(generate(engine, one.prompt, options_of(one, logprobs)));
  }
  return results;
}

inline void expect_same_answers(const std::vector<GenerateResult>& expected,
                                const std::vector<AnsweredJob>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    SCOPED_TRACE(i);
    ASSERT_TRUE(found[i].has_ended);
    ASSERT_FALSE(found[i].error.has_value()) << found[i].error->what();
    EXPECT_EQ(expected[i].tokens, found[i].result.tokens);
    EXPECT_EQ(expected[i].reason, found[i].result.reason);
    ASSERT_EQ(expected[i].logprobs.size(), found[i].result.logprobs.size());
    for (size_t j = 0; j < expected[i].logprobs.size(); ++j) {
      EXPECT_EQ(expected[i].logprobs[j].logprob, found[i].result.logprobs[j].logprob);
      EXPECT_EQ(expected[i].logprobs[j].best, found[i].result.logprobs[j].best);
    }
  }
}

}  // namespace vitrine::testing
