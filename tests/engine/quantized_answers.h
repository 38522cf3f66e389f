// SPDX-License-Identifier: Apache-2.0
// Logits of a folder, and how far they are from those that its fixture holds.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/checkpoint/quantized_folders.h"
#include "vitrine/engine.h"

namespace vitrine::testing {

inline std::vector<float> decode_floats(const std::string& base64) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : base64) {
    const size_t digit = kDigits.find(c);
    if (digit == kDigits.npos) break;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<uint8_t>(bits >> count));
  }
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  return values;
}

/// Returns the mean divergence of rows of logits from those of the float model.
inline double divergence(std::span<const float> float_logits, std::span<const float> logits,
                         size_t vocabulary) {
  const auto log_softmax = [&](std::span<const float> row) {
    const float most = *std::ranges::max_element(row);
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit - most));
    std::vector<double> result;
    for (const float logit : row) result.push_back(logit - most - std::log(sum));
    return result;
  };
  double total = 0;
  const size_t rows = float_logits.size() / vocabulary;
  for (size_t row = 0; row < rows; ++row) {
    const auto p = log_softmax(float_logits.subspan(row * vocabulary, vocabulary));
    const auto q = log_softmax(logits.subspan(row * vocabulary, vocabulary));
    for (size_t i = 0; i < vocabulary; ++i) total += std::exp(p[i]) * (p[i] - q[i]);
  }
  return total / static_cast<double>(rows);
}

inline std::vector<float> run_model(const std::string& path, const std::vector<int32_t>& tokens,
                                    EngineOptions options = {}) {
  options.threads = 1;
  options.max_context = 64;
  options.max_step_tokens = options.max_logit_rows = 64;
  options.keep_logits = true;
  const auto engine = Engine::load(path, options);
  StepInput input;
  input.sequence = engine->create_sequence();
  input.rows = StepInput::Rows::kAll;
  input.tokens = tokens;
  std::vector<float> logits;
  for (const StepOutput& output : engine->step({&input, 1})) {
    logits.insert(logits.end(), output.scores.begin(), output.scores.end());
  }
  return logits;
}

}  // namespace vitrine::testing
