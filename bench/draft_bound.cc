// SPDX-License-Identifier: Apache-2.0
// Measures what the gate of speculation lets a bad drafter cost: one that is always wrong, and one
// that is right and takes 50 ms a call. Of each prompt an answer without guesses and one with, in
// turn; of their times, less the drafter's first two calls, the median of so many pairs. Prints a
// table in Markdown: the median over the prompts, and its 95 % interval.
//
//     build/bench/draft_bound MODEL bench/speculation_free.jsonl [--tokens 256] [--rounds 5]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/model.h"

namespace {

using namespace vitrine;
using Clock = std::chrono::steady_clock;

/// Knows the answer that comes, and guesses it, or another token at each place.
class KnownAnswer final : public Drafter {
 public:
  KnownAnswer(std::string_view name, std::vector<int32_t> answer, bool is_right,
              std::chrono::milliseconds pause, int32_t vocabulary)
      : name_(name),
        answer_(std::move(answer)),
        is_right_(is_right),
        pause_(pause),
        vocabulary_(vocabulary) {}
  std::string_view name() const override { return name_; }
  DraftTextId start(const DraftText& text) override {
    made_ = -text.prompt_tokens;
    return 1;
  }
  DraftTextId fork(DraftTextId text) override { return text; }
  void commit(DraftTextId, std::span<const int32_t> tokens) override {
    made_ += std::ssize(tokens);
  }
  void truncate(DraftTextId, int64_t) override {}
  void propose(std::span<DraftProposal> proposals) override {
    const Clock::time_point begin = Clock::now();
    while (Clock::now() - begin < pause_) continue;  // as a network that computes
    for (DraftProposal& proposal : proposals) {
      for (int32_t& token : proposal.tokens) {
        const auto place = static_cast<size_t>(made_ + proposal.count);
        if (place >= answer_.size()) break;
        token = is_right_ ? answer_[place] : (answer_[place] + 1) % vocabulary_;
        ++proposal.count;
      }
    }
    if (++calls < 3) first_calls += std::chrono::duration<double>(Clock::now() - begin).count();
  }
  void release(DraftTextId, bool) override {}

  int calls = 0;
  double first_calls = 0;  // seconds that the first two took

 private:
  const std::string_view name_;
  const std::vector<int32_t> answer_;
  const bool is_right_;
  const std::chrono::milliseconds pause_;
  const int32_t vocabulary_;
  int64_t made_ = 0;  // tokens of the answer
};

struct BadDrafter {
  std::string_view name;
  bool is_right;
  std::chrono::milliseconds pause;
};

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const std::string& path, int tokens, int rounds) : rounds_(rounds) {
    ModelOptions options;
    options.engine.max_sequences = 1;
    options.engine.max_context = tokens + 128;
    options.engine.max_logit_rows = options.engine.max_step_tokens = 64;
    options.engine.audit_mode = AuditMode::kNone;
    model_.emplace(Model::open(path, options));
    costs_ = measure_pass_costs(*model_, 9, 9);
    generation_.max_new_tokens = tokens;
    generation_.ignore_end_of_text = true;
    generation_.sampler.temperature = 0.8F;
  }

  void run(const BadDrafter& bad, const std::vector<std::string>& prompts) {
    std::vector<double> ratios;
    int64_t calls = 0, passes = 0;
    uint64_t seed = 0;
    for (const std::string& prompt : prompts) {
      generation_.sampler.seed = ++seed;
      const std::vector<int32_t> ids = model_->tokenizer().encode(prompt, true);
      const std::vector<int32_t> answer = generate(*model_, ids, generation_).tokens;
      std::vector<double> pairs;
      for (int round = 0; round < rounds_; ++round) {
        KnownAnswer drafter(bad.name, answer, bad.is_right, bad.pause,
                            model_->summary().vocab_size);
        GenerateOptions guessed = generation_;
        guessed.speculation = {.drafter = &drafter, .costs = costs_};
        double plain = 0;
        if (round % 2 == 0) plain = generate(*model_, ids, generation_).decode_seconds;
        const GenerateResult found = generate(*model_, ids, guessed);
        if (round % 2 == 1) plain = generate(*model_, ids, generation_).decode_seconds;
        if (found.tokens != answer || !found.speculation.problem.empty()) {
          std::fprintf(stderr, "draft_bound: the answer is another one than without guesses\n");
          std::exit(1);
        }
        pairs.push_back((found.decode_seconds - drafter.first_calls) / plain);
        calls += drafter.calls;
        passes += found.speculation.num_passes;
      }
      ratios.push_back(median(pairs));
    }
    std::ranges::sort(ratios);
    const auto count = static_cast<double>(ratios.size());
    const auto low = static_cast<size_t>(std::max(0.0, (count - 1.96 * std::sqrt(count)) / 2));
    std::printf("| %s | %.3f (%.3f to %.3f) | %.1f | %.1f |\n", std::string(bad.name).c_str(),
                median(ratios), ratios[low], ratios[ratios.size() - 1 - low],
                static_cast<double>(calls) / (count * rounds_),
                static_cast<double>(passes) / (count * rounds_));
  }

 private:
  const int rounds_;
  std::optional<Model> model_;
  PassCosts costs_;
  GenerateOptions generation_;
};

std::vector<std::string> read_prompts(const char* path) {
  std::ifstream file(path);
  std::vector<std::string> prompts;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty())
      prompts.push_back(nlohmann::json::parse(line).at("prompt").get<std::string>());
  }
  if (prompts.empty()) throw std::runtime_error(std::string(path) + " has no prompt");
  return prompts;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: draft_bound MODEL PROMPTS [--tokens N] [--rounds N]\n");
    return 2;
  }
  int tokens = 256, rounds = 5;
  for (int i = 3; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--tokens") tokens = std::atoi(argv[i + 1]);
    if (name == "--rounds") rounds = std::atoi(argv[i + 1]);
  }
  try {
    const std::vector<std::string> prompts = read_prompts(argv[2]);
    Bench bench(argv[1], std::max(tokens, 1), std::max(rounds, 1));
    std::printf("%zu prompts, %d tokens each, %d pairs\n\n", prompts.size(), tokens, rounds);
    std::printf(
        "| drafter | time over that without guesses | calls | passes |\n|---|---|---|---|\n");
    for (const BadDrafter& bad :
         {BadDrafter{"always wrong", false, {}},
          BadDrafter{"right, 50 ms a call", true, std::chrono::milliseconds(50)}}) {
      bench.run(bad, prompts);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "draft_bound: %s\n", error.what());
    return 1;
  }
  return 0;
}
