// What commands that generate share: how tokens are chosen, and the head of their log.
#pragma once

#include <optional>

#include "common.h"
#include "vitrine/audit_log.h"

namespace cli {

/// --temperature, --top-k, --top-p, --min-p and --seed.
struct SamplingOptions {
  // llama.cpp's defaults.
  vitrine::SamplerOptions sampler{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};
  std::optional<uint64_t> seed;

  void add_to(CLI::App& command, const char* seed_help);
  /// Draws a seed where none was given. Refuses values out of range.
  void resolve();
};

vitrine::LogHeader log_header(const std::string& model_path, const SamplingOptions& sampling,
                              const DeviceOptions& device, const vitrine::ModelSummary& model,
                              const vitrine::Checkpoint& checkpoint);

}  // namespace cli
