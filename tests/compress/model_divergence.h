// SPDX-License-Identifier: Apache-2.0
// Texts to calibrate an oracle with, and how far a compressed model is from its source.
#pragma once

#include <string>
#include <vector>

#include "tests/engine/engine_fixture.h"
#include "vitrine/compress.h"
#include "vitrine/quality.h"

namespace vitrine::testing {

/// Options with `texts` texts of random ids that the folder's model has, each from its own seed.
inline QuantizeOptions calibrated_options(const std::string& folder, const char* scheme,
                                          const char* method, int texts, int length,
                                          uint32_t first_seed) {
  QuantizeOptions options;
  options.scheme = scheme;
  options.method = method;
  EngineOptions plain;
  plain.max_sequences = 1;
  const int vocab = Engine::load(folder, plain)->summary().vocab_size;
  for (int i = 0; i < texts; ++i) {
    options.calibration.push_back(prompt_ids(length, vocab, first_seed + static_cast<uint32_t>(i)));
  }
  return options;
}

/// Returns the mean KL of the second model from the first on two windows of random ids; neither
/// has more than `context` positions.
inline double model_divergence(const std::string& source, const std::string& result,
                               int64_t context = 160) {
  EngineOptions options = test_options();
  options.max_context = context;
  options.kv_codecs = {"f32"};
  options.keep_logits = true;
  const auto first = Engine::load(source, options), second = Engine::load(result, options);
  const std::vector<int32_t> ids = prompt_ids(60, first->summary().vocab_size, 9);
  WindowOptions window;
  window.window = 30;
  return compare_models(*first, *second, ids, window).mean_kl;
}

}  // namespace vitrine::testing
