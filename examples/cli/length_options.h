// SPDX-License-Identifier: Apache-2.0
// How much `generate` and `chat` compute: new tokens, positions, prompt tokens of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "vitrine/checkpoint.h"

namespace CLI {
class App;
}

namespace cli {

struct LengthOptions {
  int max_new_tokens = 128;    ///< -1: until the text ends or the context is full
  std::optional<int> context;  ///< 0: the model's own limit; none: as the command has it
  int step_tokens = 512;

  /// -n, -c and --step-tokens; `help`: what -n and -c are for.
  void add_to(CLI::App& command, const std::string& length_help, const std::string& context_help);
  bool is_endless() const { return max_new_tokens < 0; }
  /// For GenerateOptions::max_new_tokens.
  int token_limit() const;
  /// How many positions a sequence may have; where nothing was asked for, at most
  /// `most_by_default`. Throws kInvalidArgument where more than the model's limit is asked for.
  int64_t context_limit(const vitrine::ModelConfig& config, const std::string& model,
                        int64_t most_by_default) const;
};

/// llama.cpp's, where the model's own limit is not less: what a conversation and `-n -1` get.
inline constexpr int kDefaultContext = 4096;

}  // namespace cli
