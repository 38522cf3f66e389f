// SPDX-License-Identifier: Apache-2.0
#include "length_options.h"

#include <CLI/CLI.hpp>

#include <charconv>
#include <limits>

#include "common.h"

namespace cli {

namespace {

constexpr int kMaxLength = 1 << 30;
constexpr int kMaxStepTokens = 16384;

/// Accepts -1 and whole numbers from 1.
CLI::Validator check_length() {
  return CLI::Validator(
      [](std::string& text) {
        int length = 0;
        const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), length);
        const bool is_whole = status == std::errc() && end == text.data() + text.size();
        const bool is_length = is_whole && (length == -1 || (length >= 1 && length <= kMaxLength));
        return is_length ? std::string()
                         : "'" + text +
                               "'; expected a number from 1, or -1: until the text ends or the "
                               "context is full";
      },
      "");
}

}  // namespace

void LengthOptions::add_to(CLI::App& command, const std::string& length_help,
                           const std::string& context_help) {
  command
      .add_option("-n,--max-new-tokens", max_new_tokens,
                  length_help + "; -1: until the text ends or the context is full")
      ->check(check_length())
      ->capture_default_str();
  command.add_option("-c,--context", context, context_help + "; 0: the model's own limit")
      ->check(CLI::Range(0, kMaxLength));
  command
      .add_option("--step-tokens", step_tokens,
                  "prompt tokens that are computed together, at most; the answer is the same")
      ->check(CLI::Range(1, kMaxStepTokens))
      ->capture_default_str();
}

int LengthOptions::token_limit() const { return is_endless() ? kMaxLength : max_new_tokens; }

int64_t LengthOptions::context_limit(const vitrine::ModelConfig& config, const std::string& model,
                                     int64_t most_by_default) const {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  return cli::context_limit(context.value_or(0), config, model,
                            context ? kNoLimit : most_by_default);
}

}  // namespace cli
