// SPDX-License-Identifier: Apache-2.0
// Two models on one text: perplexities and the divergence between them.
#pragma once

#include <cstdint>
#include <vector>

#include "vitrine/engine.h"

namespace cli {

struct Comparison {
  int64_t num_tokens = 0;  ///< predicted ones
  double source_perplexity = 0, result_perplexity = 0;
  double mean_kl = 0;  ///< KL(source || result), nats a token
};

/// Windows of ids that do not overlap; a window's first id is not predicted.
inline constexpr int kEvaluationWindow = 1024;
/// Rows of logits in one step of the engines to be compared.
inline constexpr int kEvaluationRows = 32;

/// Options for an engine to be compared: contexts of `window` positions, all logits.
vitrine::EngineOptions evaluation_options(int64_t window);

/// Runs both models, loaded with evaluation_options(window) and of the same vocabulary, over `ids`
/// (at least two). Throws kCancelled after Ctrl-C.
Comparison compare_models(vitrine::Engine& source, vitrine::Engine& result,
                          const std::vector<int32_t>& ids, int64_t window);

}  // namespace cli
