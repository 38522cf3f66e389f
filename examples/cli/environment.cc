// SPDX-License-Identifier: Apache-2.0
#include "environment.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <string_view>

namespace cli {

namespace {

/// A variable that was taken.
struct Taken {
  std::string variable, option, value;
};
std::vector<Taken>& taken_variables() {
  static std::vector<Taken> taken;
  return taken;
}

bool is_false(std::string value) {
  std::ranges::transform(value, value.begin(), [](unsigned char c) { return std::tolower(c); });
  constexpr std::string_view kFalse[] = {"0", "false", "off", "no", "n", "-"};
  return std::ranges::find(kFalse, value) != std::end(kFalse);
}

/// Whether the command line has an option that this one cannot stand beside.
bool is_contradicted(const CLI::App& group, const CLI::Option& option,
                     const std::set<const CLI::Option*>& given) {
  const auto excluded = option.get_excludes();
  if (std::ranges::any_of(excluded,
                          [&](const CLI::Option* other) { return given.contains(other); })) {
    return true;
  }
  if (group.get_require_option_max() != 1) return false;
  const auto options = group.get_options();
  return std::ranges::any_of(options, [&](const CLI::Option* one) { return given.contains(one); });
}

/// What a log says of its run; the environment does not overrule it.
bool is_told_by_log(const std::string& variable) {
  constexpr std::string_view kTold[] = {"VITRINE_MODEL",   "VITRINE_DEVICE",
                                        "VITRINE_KERNELS", "VITRINE_ROPE_FREQUENCIES",
                                        "VITRINE_KV_TYPE", "VITRINE_ACTIVATION_TYPE"};
  return std::ranges::find(kTold, variable) != std::end(kTold);
}

void take(CLI::App& group, const std::set<const CLI::Option*>& given, bool has_log) {
  for (CLI::Option* option : group.get_options()) {
    const std::string variable = environment_name(*option);
    if (variable.empty() || given.contains(option)) continue;
    if (has_log && is_told_by_log(variable)) continue;
    const char* value = std::getenv(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    const bool is_flag = option->get_items_expected_max() == 0;
    if ((is_flag && is_false(value)) || is_contradicted(group, *option, given)) continue;
    option->envname(variable);
    taken_variables().push_back({variable, option->get_lnames().front(), value});
  }
  for (CLI::App* inner : group.get_subcommands([](const CLI::App*) { return true; })) {
    if (inner->get_name().empty()) take(*inner, given, has_log);
  }
}

/// Whether the word stands in the text with no letter, digit or dash beside it.
bool has_word(std::string_view text, std::string_view word) {
  const auto is_part = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
  };
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    const bool begins = at == 0 || !is_part(text[at - 1]) || word.front() == '-';
    if (begins && (end == text.size() || !is_part(text[end]))) return true;
  }
  return false;
}

}  // namespace

std::string environment_name(const CLI::Option& option) {
  if (option.get_lnames().empty()) return "";
  std::string name = option.get_lnames().front();
  if (name == "help") return "";
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return c == '-' ? '_' : static_cast<char>(std::toupper(c));
  });
  return "VITRINE_" + name;
}

void take_environment(const CommandWords& words) {
  if (words.command == nullptr) return;
  take(*words.command, words.given, words.words.front() == "audit");
}

std::string with_variables(std::string message) {
  const std::string said = message;
  for (const Taken& one : taken_variables()) {
    std::string snake = one.option;
    std::ranges::replace(snake, '-', '_');
    const bool is_meant = has_word(said, "--" + one.option) || has_word(said, snake) ||
                          has_word(said, "'" + one.value + "'");
    if (is_meant) message += fmt::format("; the environment has {}={}", one.variable, one.value);
  }
  return message;
}

}  // namespace cli
