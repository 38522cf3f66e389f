// SPDX-License-Identifier: Apache-2.0
// adapter_ids MODEL ADAPTER KERNELS: reads ids from standard input; prints the logits behind each
// position as JSON: [[value, …] by position]. ADAPTER "-": the model alone; "PATH:SCALE,…": the
// sum of them.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "vitrine/engine.h"

int main(int argc, char** argv) try {
  if (argc != 4) return std::fputs("usage: adapter_ids MODEL ADAPTER KERNELS\n", stderr), 2;
  std::vector<int32_t> ids;
  for (int32_t id = 0; std::cin >> id;) ids.push_back(id);
  vitrine::EngineOptions options;
  options.kernels = std::string_view(argv[3]) == "reference" ? vitrine::KernelPath::kReference
                                                             : vitrine::KernelPath::kFused;
  options.threads = 1;
  options.keep_logits = true;
  options.max_logit_rows = static_cast<int>(ids.size());
  const bool has_adapter = std::string_view(argv[2]) != "-";
  const bool is_sum = std::string_view(argv[2]).find(':') != std::string_view::npos;
  std::istringstream parts(argv[2]);
  for (std::string part; is_sum && std::getline(parts, part, ',');) {
    const size_t colon = part.rfind(':');
    options.lora.emplace_back(part.substr(0, colon), std::stof(part.substr(colon + 1)));
  }
  if (has_adapter && !is_sum) options.adapters = {argv[2]};
  const auto engine = vitrine::Engine::load(argv[1], options);
  vitrine::StepInput input;
  input.sequence = engine->create_sequence(has_adapter && !is_sum ? 0 : -1);
  input.tokens = ids;
  input.rows = vitrine::StepInput::Rows::kAll;
  nlohmann::json rows = nlohmann::json::array();
  for (const vitrine::StepOutput& output : engine->step({&input, 1})) {
    rows.push_back(std::vector<float>(output.scores.begin(), output.scores.end()));
  }
  std::cout << rows << '\n';
} catch (const vitrine::Error& error) {
  return std::fprintf(stderr, "adapter_ids: %s\n", error.what()), 1;
}
