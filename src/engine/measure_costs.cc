// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "engine/generate/generation_sequence.h"
#include "vitrine/engine.h"

namespace vitrine {

namespace {

constexpr int32_t kMeasuredPasses[] = {1, 2, 3, 4, 6, 8, 12, 16};
constexpr int32_t kTokensBefore = 64;  // that a pass looks back at, where the context has room

/// `count` ids spread over the vocabulary, from number `first` on: a mixture of experts meets as
/// many of them as in a text, and others in each pass.
std::vector<int32_t> spread_tokens(int64_t vocab_size, int64_t first, int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t i = first; i < first + count; ++i) {
    ids.push_back(static_cast<int32_t>((1 + i * 7919) % vocab_size));
  }
  return ids;
}

double middle(std::vector<double>& seconds) {
  const auto half = seconds.begin() + std::ssize(seconds) / 2;
  std::ranges::nth_element(seconds, half);
  return *half;
}

void feed_tokens(Stepper& stepper, SequenceId sequence, std::span<const int32_t> tokens,
                 int32_t drafts) {
  StepInput input;
  input.sequence = sequence;
  input.tokens = tokens;
  input.num_drafts = drafts;
  stepper.step({&input, 1});
}

}  // namespace

PassCosts measure_pass_costs(Stepper& stepper, int32_t max_tokens, int repeats,
                             double seconds_at_most) {
  if (max_tokens < 1 || repeats < 1) {
    throw Error(ErrorKind::kInvalidArgument,
                "passes of at most " + std::to_string(max_tokens) + " tokens were to be measured " +
                    std::to_string(repeats) + " times; expected numbers from 1 on");
  }
  const EngineOptions& limits = stepper.options();
  const int32_t most = std::min<int32_t>(
      {max_tokens, limits.max_step_tokens, limits.max_logit_rows, limits.max_context});
  const int32_t before = std::min(kTokensBefore, limits.max_context - most);
  const int64_t vocab = stepper.summary().vocab_size;
  const std::vector<int32_t> ids = spread_tokens(vocab, 0, before);
  engine::GenerationSequence sequence(stepper, 0);
  for (int32_t done = 0; done < before;) {
    const int32_t count = std::min(before - done, limits.max_step_tokens);
    feed_tokens(stepper, sequence.id(),
                std::span(ids).subspan(static_cast<size_t>(done), static_cast<size_t>(count)), 0);
    done += count;
  }
  std::vector<PassCost> costs;
  for (const int32_t tokens : kMeasuredPasses) {
    if (tokens <= most) costs.push_back({tokens, 0});
  }
  std::vector<std::vector<double>> seconds(costs.size());
  int64_t fed = before;
  const auto began = std::chrono::steady_clock::now();
  for (int round = -1; round < repeats; ++round) {  // the first one touches all memory
    const std::chrono::duration<double> so_far = std::chrono::steady_clock::now() - began;
    if (round > 0 && so_far.count() > seconds_at_most) break;
    for (size_t i = 0; i < costs.size(); ++i) {
      const std::vector<int32_t> tokens = spread_tokens(vocab, fed, costs[i].tokens);
      fed += costs[i].tokens;
      const auto start = std::chrono::steady_clock::now();
      feed_tokens(stepper, sequence.id(), tokens, costs[i].tokens - 1);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      if (round >= 0) seconds[i].push_back(std::max(taken.count(), 1e-9));
      sequence.cut(before);
    }
  }
  for (size_t i = 0; i < costs.size(); ++i) costs[i].seconds = middle(seconds[i]);
  return PassCosts(std::move(costs));
}

}  // namespace vitrine
