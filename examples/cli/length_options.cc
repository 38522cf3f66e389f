// SPDX-License-Identifier: Apache-2.0
#include "length_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
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
  command.add_flag("--context-shift", context_shift,
                   "go on where the context is full: keep its first tokens (--keep), drop half of "
                   "the rest and compute what is left again");
  command
      .add_option(
          "--keep", keep,
          "first tokens that --context-shift keeps; -1: those of the prompt, in chat of the "
          "system message")
      ->check(CLI::Range(-1, kMaxLength))
      ->capture_default_str();
}

void LengthOptions::check(const std::vector<std::pair<bool, std::string>>& others) const {
  if (!context_shift && keep != 0) {
    refuse(fmt::format("--keep {} is for --context-shift; expected both, or neither", keep));
  }
  for (const auto& [is_given, name] : others) {
    if (!context_shift || !is_given) continue;
    refuse(fmt::format("--context-shift and {}, which follows all of a text: expected one of them",
                       name));
  }
}

int64_t LengthOptions::kept(int64_t prompt_tokens, int64_t context) const {
  const int64_t count = keep < 0 ? prompt_tokens : keep;
  if (count <= context - 2) return count;
  refuse(fmt::format(
      "--keep {}: {} tokens are to be kept of a context of {}; expected at most {}, or a "
      "larger -c",
      keep, count, context, std::max<int64_t>(0, context - 2)));
}

void LengthOptions::add_to(vitrine::LogHeader& header) const {
  if (!context_shift) return;
  header.engine.emplace_back("context_shift", fmt::format("keep {}", keep));
}

std::string shift_note(const std::vector<vitrine::ContextShift>& shifts) {
  if (shifts.empty()) return "";
  int64_t dropped = 0;
  for (const vitrine::ContextShift& shift : shifts) dropped += shift.dropped;
  return fmt::format("; the context was shifted {} {}, {} tokens dropped", shifts.size(),
                     shifts.size() == 1 ? "time" : "times", dropped);
}

int LengthOptions::token_limit() const { return is_endless() ? kMaxLength : max_new_tokens; }

int64_t LengthOptions::context_limit(const vitrine::ModelFacts& config, const std::string& model,
                                     int64_t most_by_default) const {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
  return cli::context_limit(context.value_or(0), config, model,
                            context ? kNoLimit : most_by_default);
}

}  // namespace cli
