// SPDX-License-Identifier: Apache-2.0
#include "closing_note.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "common.h"

namespace cli {

namespace {
bool is_quiet = false;
}  // namespace

std::string token_speed(int64_t tokens, int64_t steps, double seconds) {
  if (tokens == 0) return "no tokens";
  std::string text = fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s");
  if (steps > 0 && seconds > 0) {
    text += fmt::format(" at {:.0f} tokens/s", static_cast<double>(steps) / seconds);
  }
  return text;
}

void add_quiet(CLI::App& command) {
  command.add_flag("-q,--quiet", is_quiet,
                   "leave out the notes beside the output; warnings and mistakes stay");
}

void write_remark(const std::string& message) {
  if (!is_quiet) write_note(message);
}

}  // namespace cli
