// SPDX-License-Identifier: Apache-2.0
// How much `generate` and `chat` compute: new tokens, positions, prompt tokens of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vitrine/audit.h"
#include "vitrine/checkpoint.h"
#include "vitrine/generate.h"

namespace CLI {
class App;
}

namespace cli {

struct LengthOptions {
  int max_new_tokens = 128;    ///< -1: until the text ends or the context is full
  std::optional<int> context;  ///< 0: the model's own limit; none: as the command has it
  int step_tokens = 512;
  bool context_shift = false;  ///< a full context drops half of what stands behind `keep`
  int keep = 0;                ///< first positions that stay then; -1: the prompt

  /// -n, -c, --step-tokens, --context-shift and --keep; `help`: what -n and -c are for.
  void add_to(CLI::App& command, const std::string& length_help, const std::string& context_help);
  /// Refuses --keep alone, and --context-shift beside what is named, where it is given.
  void check(const std::vector<std::pair<bool, std::string>>& others) const;
  /// How many positions of a context stay when it is shifted. Throws kInvalidArgument where that
  /// leaves no room.
  int64_t kept(int64_t prompt_tokens, int64_t context) const;
  /// Says in a log's head that contexts are shifted, where they are.
  void add_to(vitrine::LogHeader& header) const;
  bool is_endless() const { return max_new_tokens < 0; }
  /// For GenerateOptions::max_new_tokens.
  int token_limit() const;
  /// How many positions a sequence may have; where nothing was asked for, at most
  /// `most_by_default`. Throws kInvalidArgument where more than the model's limit is asked for.
  int64_t context_limit(const vitrine::ModelFacts& config, const std::string& model,
                        int64_t most_by_default) const;
};

/// "; the context was shifted 2 times, 96 tokens dropped"; empty where it was not.
std::string shift_note(const std::vector<vitrine::ContextShift>& shifts);

/// llama.cpp's, where the model's own limit is not less: what a conversation and `-n -1` get.
inline constexpr int kDefaultContext = 4096;

}  // namespace cli
