// SPDX-License-Identifier: Apache-2.0
// The logits of every position; bench/peers/compare_kl.py compares them with a float reference's.
//
//     row_logits MODEL THREADS OUT [KV] < IDS     OUT: float32, a row of logits for each id
//
// KV, f32 or i16, is what keys and values are kept in.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "vitrine/engine.h"

constexpr int kStep = 512;  // tokens of a step, whose logits are held

int main(int argc, char** argv) try {
  const std::string kv = argc == 5 ? argv[4] : "";
  if (argc < 4 || argc > 5 || (argc == 5 && kv != "f32" && kv != "i16")) {
    std::fputs("row_logits: expected MODEL THREADS OUT [f32|i16] and ids on standard input\n",
               stderr);
    return 2;
  }
  std::vector<int32_t> ids;
  for (int32_t id = 0; std::cin >> id;) ids.push_back(id);
  vitrine::EngineOptions options;
  options.threads = std::atoi(argv[2]);
  options.max_context = static_cast<int>(ids.size());
  options.max_step_tokens = options.max_logit_rows = kStep;
  options.keep_logits = true;
  if (!kv.empty()) options.kv_codecs = {kv};
  const auto engine = vitrine::Engine::load(argv[1], options);
  vitrine::StepInput input;
  input.sequence = engine->create_sequence();
  input.rows = vitrine::StepInput::Rows::kAll;
  std::FILE* file = std::fopen(argv[3], "wb");
  bool is_written = file != nullptr;
  for (std::span<const int32_t> left = ids; is_written && !left.empty();) {
    input.tokens = left.first(std::min<size_t>(left.size(), kStep));
    left = left.subspan(input.tokens.size());
    for (const vitrine::StepOutput& output : engine->step({&input, 1})) {
      is_written = is_written && std::fwrite(output.scores.data(), sizeof(float),
                                             output.scores.size(), file) == output.scores.size();
    }
  }
  if (file == nullptr || std::fclose(file) != 0 || !is_written) {
    return std::fprintf(stderr, "row_logits: %s could not be written\n", argv[3]), 1;
  }
  return 0;
} catch (const std::exception& error) {
  return std::fprintf(stderr, "row_logits: %s\n", error.what()), 1;
}
