// SPDX-License-Identifier: Apache-2.0
// Time of sampler pipelines on random logits, in microseconds a token on one core: the median and
// the fastest of many. One JSON object on standard output.
//
//     build/bench/sampler_bench [VOCABULARY] [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "vitrine/sample.h"

namespace {

using Clock = std::chrono::steady_clock;

// What bench/peers/llama_sampler.cc takes too: logits of deviation 2 with a few far above, as a
// model's are; another row each round, so that nothing is predicted.
std::vector<std::vector<float>> make_rows(size_t vocabulary) {
  std::mt19937 engine(20240521);
  std::vector<std::vector<float>> rows(8, std::vector<float>(vocabulary));
  for (auto& row : rows) {
    std::normal_distribution<float> normal(0.0f, 2.0f);
    for (float& logit : row) logit = normal(engine);
    for (int i = 0; i < 20; ++i) row[engine() % vocabulary] += 8.0f;
  }
  return rows;
}

struct Times {
  double median = 0, fastest = 0;
};

Times measure(const vitrine::SamplerOptions& options, const std::vector<std::vector<float>>& rows,
              int rounds) {
  auto pipeline = vitrine::SamplerPipeline::from_options(options);
  std::vector<int32_t> history;
  std::vector<double> times;
  std::vector<float> logits(rows[0].size());       // one buffer, as the head of a model writes it
  for (int round = -3; round < rounds; ++round) {  // the first touch memory
    const std::vector<float>& row = rows[static_cast<size_t>(round + 3) % rows.size()];
    const vitrine::SampleContext context{
        .seed = 7, .position = static_cast<int64_t>(history.size()), .history = history};
    std::ranges::copy(row, logits.begin());
    const Clock::time_point start = Clock::now();
    const int32_t id = pipeline.sample(logits, context);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (round >= 0) times.push_back(1e6 * seconds);
    history.push_back(id);
  }
  std::ranges::sort(times);
  return {times[times.size() / 2], times.front()};
}

}  // namespace

int main(int argc, char** argv) try {
  const int vocabulary = argc > 1 ? std::atoi(argv[1]) : 150000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 300;
  if (argc > 3 || vocabulary < 100 || rounds < 1) {
    std::fprintf(stderr, "usage: sampler_bench [VOCABULARY, 100 or more] [ROUNDS]\n");
    return 2;
  }
  const auto rows = make_rows(static_cast<size_t>(vocabulary));
  const std::vector<std::pair<const char*, vitrine::SamplerOptions>> cases = {
      {"greedy", {.temperature = 0}},
      {"temperature_top_k_top_p_min_p",
       {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f}},
      {"temperature_min_p", {.temperature = 0.8f, .min_p = 0.05f}},
      {"temperature_top_p", {.temperature = 0.8f, .top_p = 0.95f}},
      {"temperature", {.temperature = 0.8f}},
      {"penalties_temperature_top_k_top_p_min_p",
       {.temperature = 0.8f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .repetition_penalty = 1.1f,
        .penalty_window = 64}},
  };
  std::printf("{\"vocabulary\": %d, \"rounds\": %d, \"us\": {", vocabulary, rounds);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Times times = measure(cases[i].second, rows, rounds);
    std::printf("%s\"%s\": {\"median\": %.2f, \"fastest\": %.2f}", i == 0 ? "" : ", ",
                cases[i].first, times.median, times.fastest);
  }
  std::printf("}}\n");
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "sampler_bench: %s\n", error.what());
  return 1;
}
