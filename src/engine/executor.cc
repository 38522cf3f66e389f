#include "engine/executor.h"

#include <cmath>

namespace vitrine::engine {

void StepBatch::clear() {
  token_ids.clear();
  positions.clear();
  block_tables.clear();
  row_tokens.clear();
  row_targets.clear();
  spans.clear();
  forced_routes.clear();
}

void StepBatch::reserve(size_t tokens, size_t rows, size_t sequences) {
  token_ids.reserve(tokens);
  positions.reserve(tokens);
  block_tables.reserve(tokens);
  row_tokens.reserve(rows);
  row_targets.reserve(rows);
  spans.reserve(sequences);
  forced_routes.reserve(tokens);
}

void fill_rope_tables(const ModelConfig& config, const EngineOptions& options,
                      std::vector<float>& cos, std::vector<float>& sin) {
  const int64_t max_context = options.max_context;
  const int64_t half = config.head_dim / 2;
  cos.resize(static_cast<size_t>(max_context * half));
  sin.resize(cos.size());
  for (int64_t i = 0; i < half; ++i) {
    const auto exponent =
        static_cast<float>(static_cast<double>(2 * i) / static_cast<double>(config.head_dim));
    const auto power = static_cast<float>(std::pow(config.rope_theta, exponent));
    float frequency = 1.0F / power;
    if (options.rope_frequencies == DType::kBF16) {
      frequency = bf16_to_float(float_to_bf16(frequency));
    }
    for (int64_t position = 0; position < max_context; ++position) {
      const float angle = static_cast<float>(position) * frequency;
      const auto index = static_cast<size_t>(position * half + i);
      cos[index] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sin[index] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

}  // namespace vitrine::engine
