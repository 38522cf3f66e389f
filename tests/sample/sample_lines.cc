// SPDX-License-Identifier: Apache-2.0
// Runs sampler stages on lines of text, for oracle_test.py and stage_oracle_test.py.
//
//   stages top_k=5 top_p=0.9 : BITS…     -> surviving ids, in order
//   logits top_k=5 history=3,7 : BITS…   -> id=BITS for each survivor, or "error TEXT"
//   sample mirostat=2 seed=7 rows=40 : BITS…   -> the ids chosen at positions 0 to rows - 1
//   philox KEY C0 C1 C2 C3               -> four words
//
// Options are those of set_sampler_option; the stages run in the order in which they are named.
// BITS are float32 logits as 8 hexadecimal digits, so that nothing is rounded on the way.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <iostream>
#include <limits>
#include <sstream>

#include "vitrine/sample.h"

namespace {

class PrintStage : public vitrine::SamplerStage {
 public:
  explicit PrintStage(bool with_logits) : with_logits_(with_logits) {}
  std::string_view name() const override { return "print"; }
  uint32_t stage_id() const override { return vitrine::kFirstHostStageId; }
  void apply(vitrine::Candidates& candidates, const vitrine::SampleContext&) override {
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      const int32_t id =
          candidates.ids.empty() ? static_cast<int32_t>(index) : candidates.ids[index];
      const float logit = candidates.logits[index];
      candidates.selected = id;
      if (logit == -std::numeric_limits<float>::infinity()) continue;
      std::printf("%d", id);
      if (with_logits_) std::printf("=%08x", std::bit_cast<uint32_t>(logit));
      std::printf(" ");
    }
  }

 private:
  bool with_logits_;
};

struct Line {
  vitrine::SamplerOptions options;
  std::vector<int32_t> history;
  size_t rows = 1;
  std::vector<float> logits;
};

Line read_line(std::istringstream& words) {
  Line line;
  std::string word;
  while (words >> word && word != ":") {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals), value = word.substr(equals + 1);
    if (name == "rows") {
      line.rows = std::stoul(value);
    } else if (name == "history") {
      std::istringstream ids(value);
      for (std::string id; std::getline(ids, id, ',');) line.history.push_back(std::stoi(id));
    } else {
      vitrine::set_sampler_option(line.options, name, value);
      for (const vitrine::SamplerOptionInfo& info : vitrine::sampler_option_list()) {
        const std::string stage(info.stage);
        const bool is_new =
            info.name == name && stage != "mirostat" &&
            std::ranges::find(line.options.samplers, stage) == line.options.samplers.end();
        if (is_new) line.options.samplers.push_back(stage);
      }
    }
  }
  while (words >> word) {
    line.logits.push_back(
        std::bit_cast<float>(static_cast<uint32_t>(std::stoul(word, nullptr, 16))));
  }
  return line;
}

void run_stages(std::istringstream& words, bool with_logits) {
  const Line line = read_line(words);
  const auto made = vitrine::SamplerPipeline::from_options(line.options);
  vitrine::SamplerPipeline pipeline;
  for (const auto& stage : made.stages()) {
    if (stage != made.stages().back()) pipeline.add(stage->fork());
  }
  pipeline.add(std::make_unique<PrintStage>(with_logits));
  const vitrine::SampleContext context{.position = static_cast<int64_t>(line.history.size()),
                                       .history = line.history};
  try {
    pipeline.sample(line.logits, context);
  } catch (const vitrine::Error& error) {
    if (!with_logits) throw;
    std::printf("error %s", error.what());
  }
  std::printf("\n");
}

void run_sample(std::istringstream& words) {
  const Line line = read_line(words);
  auto pipeline = vitrine::SamplerPipeline::from_options(line.options);
  const size_t count = line.logits.size() / line.rows;
  for (size_t row = 0; row < line.rows; ++row) {
    const vitrine::SampleContext context{.seed = line.options.seed,
                                         .position = static_cast<int64_t>(row)};
    std::printf("%d ",
                pipeline.sample(std::span(line.logits).subspan(row * count, count), context));
  }
  std::printf("\n");
}

void run_philox(std::istringstream& words) {
  uint64_t key = 0;
  std::array<uint32_t, 4> counter{};
  words >> key;
  for (uint32_t& word : counter) words >> word;
  for (uint32_t word : vitrine::philox4x32(key, counter)) std::printf("%u ", word);
  std::printf("\n");
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string command;
    words >> command;
    if (command == "stages" || command == "logits") {
      run_stages(words, command == "logits");
    } else if (command == "sample") {
      run_sample(words);
    } else if (command == "philox") {
      run_philox(words);
    } else {
      std::fprintf(stderr, "sample_lines: unknown command '%s'\n", command.c_str());
      return 2;
    }
  }
  return 0;
}
