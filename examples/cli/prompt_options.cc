// SPDX-License-Identifier: Apache-2.0
#include "prompt_options.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <CLI/CLI.hpp>

#include "common.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kPromptOptionsMaxFileBytes = size_t{64} << 20;

}  // namespace

void PromptOptions::add_to(CLI::App& command) {
  CLI::Option* of_text =
      command.add_option("-p,--prompt", text, "the prompt; - reads standard input");
  command.add_option("-f,--file", file, "a file with the prompt; - reads standard input")
      ->check(not_empty())
      ->excludes(of_text);
}

std::pair<std::string, std::string> PromptOptions::input() const {
  if (file) return {"--file", *file};
  return {"--prompt", text == "-" ? "-" : ""};
}

std::string PromptOptions::read() const {
  std::string prompt;
  if (file) {
    prompt = read_text_file(*file, kPromptOptionsMaxFileBytes);
    if (prompt.ends_with('\n')) prompt.pop_back();
  } else {
    prompt = read_text_argument(text.value_or(""));
  }
  warn_of_invalid_utf8(prompt, file ? *file : "the prompt");
  return prompt;
}

size_t find_invalid_utf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    utf8proc_int32_t character = 0;
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
    const utf8proc_ssize_t size =
        utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size() - at), &character);
    if (size <= 0) return at;
    at += static_cast<size_t>(size);
  }
  return text.size();
}

void warn_of_invalid_utf8(std::string_view text, const std::string& what) {
  const size_t at = find_invalid_utf8(text);
  if (at == text.size()) return;
  write_note(
      fmt::format("warning: {} is no UTF-8 (byte {} is 0x{:02X}); what is none is read as U+FFFD",
                  what, at, static_cast<unsigned char>(text[at])));
}

}  // namespace cli
