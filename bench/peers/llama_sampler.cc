// SPDX-License-Identifier: Apache-2.0
// Time of llama.cpp's sampler chain on the logits that bench/sampler_bench.cc makes, in
// microseconds a token on one core, with the filling of its candidates, as llama_sampler_sample
// does it. One JSON object on standard output.
//
//     llama_sampler [VOCABULARY] [ROUNDS]
#include <llama.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// As in bench/sampler_bench.cc.
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

void measure(const char* name, const std::vector<llama_sampler*>& stages,
             const std::vector<std::vector<float>>& rows, int rounds) {
  llama_sampler* chain = llama_sampler_chain_init(llama_sampler_chain_default_params());
  for (llama_sampler* stage : stages) llama_sampler_chain_add(chain, stage);
  std::vector<llama_token_data> candidates(rows[0].size());
  std::vector<float> logits(rows[0].size());
  std::vector<double> times;
  for (int round = -3; round < rounds; ++round) {
    const std::vector<float>& row = rows[static_cast<size_t>(round + 3) % rows.size()];
    std::copy(row.begin(), row.end(), logits.begin());
    const Clock::time_point start = Clock::now();
    for (size_t id = 0; id < logits.size(); ++id) {
      candidates[id] = {static_cast<llama_token>(id), logits[id], 0.0f};
    }
    llama_token_data_array array = {candidates.data(), candidates.size(), -1, false};
    llama_sampler_apply(chain, &array);
    llama_sampler_accept(chain, array.data[array.selected].id);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (round >= 0) times.push_back(1e6 * seconds);
  }
  llama_sampler_free(chain);
  std::sort(times.begin(), times.end());
  std::printf("\"%s\": {\"median\": %.2f, \"fastest\": %.2f}", name, times[times.size() / 2],
              times.front());
}

}  // namespace

int main(int argc, char** argv) {
  const int vocabulary = argc > 1 ? std::atoi(argv[1]) : 150000;
  const int rounds = argc > 2 ? std::atoi(argv[2]) : 300;
  if (argc > 3 || vocabulary < 100 || rounds < 1) {
    std::fprintf(stderr, "usage: llama_sampler [VOCABULARY, 100 or more] [ROUNDS]\n");
    return 2;
  }
  const auto rows = make_rows(static_cast<size_t>(vocabulary));
  std::printf("{\"vocabulary\": %d, \"rounds\": %d, \"us\": {", vocabulary, rounds);
  measure("greedy", {llama_sampler_init_greedy()}, rows, rounds);
  std::printf(", ");
  measure("temperature_top_k_top_p_min_p",
          {llama_sampler_init_temp(0.8f), llama_sampler_init_top_k(40),
           llama_sampler_init_top_p(0.95f, 1), llama_sampler_init_min_p(0.05f, 1),
           llama_sampler_init_dist(7)},
          rows, rounds);
  std::printf(", ");
  // llama.cpp's own order has the temperature last, on few tokens.
  measure("top_k_top_p_min_p_temperature",
          {llama_sampler_init_top_k(40), llama_sampler_init_top_p(0.95f, 1),
           llama_sampler_init_min_p(0.05f, 1), llama_sampler_init_temp(0.8f),
           llama_sampler_init_dist(7)},
          rows, rounds);
  std::printf(", ");
  measure("temperature_top_p",
          {llama_sampler_init_temp(0.8f), llama_sampler_init_top_p(0.95f, 1),
           llama_sampler_init_dist(7)},
          rows, rounds);
  std::printf("}}\n");
  return 0;
}
