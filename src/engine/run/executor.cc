// SPDX-License-Identifier: Apache-2.0
#include "engine/run/executor.h"

#include <algorithm>
#include <cmath>

#include "model/rope.h"

namespace vitrine::engine {

namespace {

constexpr size_t kUsualCopies = 4096;  // of keys and values, that trees of drafts need

}  // namespace

void StepBatch::clear() {
  token_ids.clear();
  positions.clear();
  block_tables.clear();
  row_tokens.clear();
  row_targets.clear();
  spans.clear();
  span_adapters.clear();
  forced_routes.clear();
  kv_copies.clear();
  row_steps.clear();
  chosen.clear();
  runners_up.clear();
  next = nullptr;
  choice_point = ChoicePoint::kBehindPass;
  meanwhile = nullptr;
  joint = nullptr;
  first_layer = 0;
  end_layer = -1;
  residual = nullptr;
  reads_residual = false;
}

void StepBatch::reserve(size_t tokens, size_t rows, size_t sequences) {
  token_ids.reserve(tokens);
  positions.reserve(tokens);
  block_tables.reserve(tokens);
  row_tokens.reserve(rows);
  row_targets.reserve(rows);
  chosen.reserve(rows);
  runners_up.reserve(rows);
  spans.reserve(sequences);
  span_adapters.reserve(sequences);
  forced_routes.reserve(tokens);
  kv_copies.reserve(std::min(tokens * tokens, kUsualCopies));
}

namespace {

// Returns the floats of one table.
size_t rope_floats(const ModelConfig& config, const EngineOptions& options, model::RopeKind kind) {
  if (kind == model::RopeKind::kSliding && config.slides.empty()) return 0;
  return static_cast<size_t>(options.max_context) *
         static_cast<size_t>(model::rope_half(config, kind));
}

}  // namespace

uint64_t rope_table_bytes(const ModelConfig& config, const EngineOptions& options) {
  constexpr uint64_t kCosAndSin = 2;
  return kCosAndSin * sizeof(float) *
         (rope_floats(config, options, model::RopeKind::kOwn) +
          rope_floats(config, options, model::RopeKind::kSliding));
}

void fill_rope_tables(const ModelConfig& config, const EngineOptions& options,
                      std::vector<float>& cos, std::vector<float>& sin, model::RopeKind kind) {
  cos.resize(rope_floats(config, options, kind));
  if (cos.empty()) return;
  const int64_t max_context = options.max_context;
  const int64_t half = model::rope_half(config, kind);
  sin.resize(cos.size());
  const std::vector<float> frequencies = model::rope_frequencies(config, kind);
  const double attention_factor = model::rope_attention_factor(config);
  for (int64_t i = 0; i < half; ++i) {
    float frequency = frequencies[static_cast<size_t>(i)];
    if (options.rope_frequencies == DType::kBF16) {
      frequency = bf16_to_float(float_to_bf16(frequency));
    }
    for (int64_t position = 0; position < max_context; ++position) {
      const float angle = static_cast<float>(position) * frequency;
      const auto index = static_cast<size_t>(position * half + i);
      cos[index] = static_cast<float>(std::cos(static_cast<double>(angle)) * attention_factor);
      sin[index] = static_cast<float>(std::sin(static_cast<double>(angle)) * attention_factor);
    }
  }
}

}  // namespace vitrine::engine
