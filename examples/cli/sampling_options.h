// SPDX-License-Identifier: Apache-2.0
// What commands that generate share: how tokens are chosen, and the head of their log.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common.h"
#include "vitrine/audit_log.h"
#include "vitrine/checkpoint.h"
#include "vitrine/tokenizer.h"

namespace cli {

/// Every option of the sampler (vitrine::sampler_option_list), --samplers, --seed, --explain and
/// --stop.
struct SamplingOptions {
  // llama.cpp's defaults.
  vitrine::SamplerOptions sampler{.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f};
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;           // texts that end the answer
  std::vector<std::string> dry_breakers;   // texts; empty: llama.cpp's four
  std::vector<std::string> given_options;  // in the order of the command line
  bool explain = false;

  void add_to(CLI::App& command, const char* seed_help);
  /// Draws a seed where none was given. Refuses values out of range, and options that would do
  /// nothing in the order that was asked for.
  void resolve();
  /// Takes what the model's publisher expects for what was not given, and says so in a remark, with
  /// the file that has it, where that is another value than without.
  void take_defaults(const vitrine::Checkpoint& checkpoint);
  /// What needs the model: DRY's breakers become ids, and ids beyond the vocabulary are refused.
  void resolve_tokens(const vitrine::Tokenizer& tokenizer, int64_t vocab_size);
  /// The stages in their order, with what they were given; where --explain asks, in a note.
  std::string explanation() const;
  void note_explanation() const;
};

vitrine::LogHeader log_header(const std::string& model_path, const SamplingOptions& sampling,
                              const DeviceOptions& device, const vitrine::ModelSummary& model,
                              const vitrine::Checkpoint& checkpoint);

}  // namespace cli
