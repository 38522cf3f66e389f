// Runs sampler stages on lines of text, for oracle_test.py.
//
//   stages temperature=0.7 top_k=5 top_p=0.9 min_p=0.1 : BITS…   -> surviving ids, in order
//   philox KEY C0 C1 C2 C3                                        -> four words
//
// BITS are float32 logits as 8 hexadecimal digits, so that nothing is rounded on the way.
#include <bit>
#include <cstdio>
#include <iostream>
#include <limits>
#include <sstream>

#include "vitrine/sample.h"

namespace {

class PrintStage : public vitrine::SamplerStage {
 public:
  std::string_view name() const override { return "print"; }
  uint32_t stage_id() const override { return vitrine::kFirstHostStageId; }
  void apply(vitrine::Candidates& candidates, const vitrine::SampleContext&) override {
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      const int32_t id =
          candidates.ids.empty() ? static_cast<int32_t>(index) : candidates.ids[index];
      if (candidates.logits[index] == -std::numeric_limits<float>::infinity()) continue;
      std::printf("%d ", id);
      candidates.selected = id;
    }
  }
};

void run_stages(std::istringstream& words) {
  vitrine::SamplerPipeline pipeline;
  std::string word;
  while (words >> word && word != ":") {
    const size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const float value = std::stof(word.substr(equals + 1));
    if (name == "temperature") pipeline.add(vitrine::make_temperature_stage(value));
    if (name == "top_k") pipeline.add(vitrine::make_top_k_stage(static_cast<int32_t>(value)));
    if (name == "top_p") pipeline.add(vitrine::make_top_p_stage(value));
    if (name == "min_p") pipeline.add(vitrine::make_min_p_stage(value));
  }
  pipeline.add(std::make_unique<PrintStage>());
  std::vector<float> logits;
  while (words >> word) {
    logits.push_back(std::bit_cast<float>(static_cast<uint32_t>(std::stoul(word, nullptr, 16))));
  }
  pipeline.sample(logits, {});
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
    if (command == "stages") {
      run_stages(words);
    } else if (command == "philox") {
      run_philox(words);
    } else {
      std::fprintf(stderr, "sample_lines: unknown command '%s'\n", command.c_str());
      return 2;
    }
  }
  return 0;
}
