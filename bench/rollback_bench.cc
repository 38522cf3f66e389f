// SPDX-License-Identifier: Apache-2.0
// Measures what it costs to take drafts back: milliseconds of a pass of one token, of one with
// drafts, of keep() behind it, and of the next pass. Models that keep a state of a sequence have
// work there. Prints a table in Markdown, with the medians of so many rounds.
//
//     build/bench/rollback_bench MODEL [--drafts 4] [--kept 2] [--prompt 64] [--rounds 20]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/engine.h"

namespace {

using vitrine::Engine;
using vitrine::EngineOptions;
using vitrine::SequenceId;
using vitrine::StepInput;

double milliseconds_of(const auto& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(const std::string& path, int drafts, int prompt, int rounds) : drafts_(drafts) {
    EngineOptions options;
    options.max_context = prompt + rounds * (drafts + 3);
    options.max_logit_rows = drafts + 1;
    engine_ = Engine::load(path, options);
    sequence_ = engine_->create_sequence();
    step(prompt, 0);
  }

  /// Tokens that mean nothing, of which the last ones are drafts.
  void step(int count, int drafts) {
    std::vector<int32_t> tokens;
    const int32_t vocabulary = std::min(engine_->summary().vocab_size, 1000);
    for (int i = 0; i < count; ++i) tokens.push_back(next_ = (next_ * 31 + 7) % vocabulary);
    StepInput input;
    input.sequence = sequence_;
    input.tokens = tokens;
    input.num_drafts = drafts;
    engine_->step({&input, 1});
  }
  void run(int kept, int rounds) {
    std::vector<double> single, drafted, keeps, behind;
    for (int round = 0; round < rounds; ++round) {
      single.push_back(milliseconds_of([&] { step(1, 0); }));
      drafted.push_back(milliseconds_of([&] { step(drafts_ + 1, drafts_); }));
      keeps.push_back(milliseconds_of([&] { engine_->keep(sequence_, kept); }));
      behind.push_back(milliseconds_of([&] { step(1, 0); }));
    }
    const double pass = median(single);
    std::printf("| | ms | of a pass of one token |\n|---|---|---|\n");
    for (const auto& [name, values] : {std::pair{"a pass of one token", single},
                                       {"a pass with drafts", drafted},
                                       {"keep", keeps},
                                       {"the pass behind it", behind}}) {
      std::printf("| %s | %.3f | %.3f |\n", name, median(values), median(values) / pass);
    }
    std::printf(
        "\n%d drafts, %d tokens kept, %lld positions at the end, %.1f MB of keys, values "
        "and states\n",
        drafts_, kept, static_cast<long long>(engine_->length(sequence_)),
        static_cast<double>(engine_->summary().kv_bytes) / 1e6);
  }

 private:
  int drafts_;
  int32_t next_ = 1;
  std::unique_ptr<Engine> engine_;
  SequenceId sequence_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  int drafts = 4, kept = 2, prompt = 64, rounds = 20;
  for (int i = 2; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const int value = std::atoi(argv[i + 1]);
    if (name == "--drafts") drafts = value;
    if (name == "--kept") kept = value;
    if (name == "--prompt") prompt = value;
    if (name == "--rounds") rounds = value;
  }
  if (argc < 2 || drafts < 1 || kept < 0 || kept > drafts + 1 || prompt < 1 || prompt > 512 ||
      rounds < 1 || rounds > 100) {
    std::fprintf(stderr,
                 "usage: rollback_bench MODEL [--drafts 4] [--kept 2] [--prompt 64] "
                 "[--rounds 20]\n");
    return 2;
  }
  try {
    Bench(argv[1], drafts, prompt, rounds).run(kept, rounds);
  } catch (const vitrine::Error& error) {
    std::fprintf(stderr, "rollback_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
