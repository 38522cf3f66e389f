// SPDX-License-Identifier: Apache-2.0
#include "suggestions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <filesystem>

namespace cli {

namespace {

constexpr size_t kMaxNamed = 4;  // of unknown words, in one line

std::vector<std::string> command_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_name().empty() && !command->get_group().empty()) {
      names.push_back(command->get_name());
    }
  }
  return names;
}

void add_option_names(const CLI::App& command, std::vector<std::string>& names) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  for (const CLI::App* group : command.get_subcommands([](const CLI::App*) { return true; })) {
    if (group->get_name().empty()) add_option_names(*group, names);
  }
}

/// The error for a word that stands where a command's name was expected.
std::string unknown_command(const CLI::App& app, const std::string& path, const std::string& word) {
  const std::vector<std::string> names = command_names(app);
  const bool is_tool = path == "vitrine";
  if (word.starts_with('-')) {
    return fmt::format("a command comes first: '{} {} {} …'; expected one of {}", path,
                       names.front(), word, fmt::join(names, ", "));
  }
  if (const std::string nearest = nearest_word(word, names); !nearest.empty()) {
    return fmt::format("'{}' is no command; did you mean '{} {}'?", word, path, nearest);
  }
  std::error_code error;
  if (is_tool && std::filesystem::exists(word, error)) {
    return fmt::format("'{}' is no command; did you mean '{} generate {} -p TEXT', or chat?", word,
                       path, word);
  }
  return fmt::format("'{}' is no command; expected one of {}", word, fmt::join(names, ", "));
}

}  // namespace

size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> costs(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) costs[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) costs[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = costs[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      costs[i][j] = std::min({costs[i - 1][j] + 1, costs[i][j - 1] + 1, replaced});
      const bool is_swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (is_swapped) costs[i][j] = std::min(costs[i][j], costs[i - 2][j - 2] + 1);
    }
  }
  return costs[a.size()][b.size()];
}

std::string nearest_word(std::string_view typed, const std::vector<std::string>& words) {
  // A third of the letters may be wrong, dashes not counted.
  const size_t letters = typed.size() - std::min(typed.find_first_not_of('-'), typed.size());
  size_t least = std::max<size_t>(1, letters / 3) + 1;
  std::string nearest;
  constexpr size_t kMaxLetters = 64;
  if (letters == 0 || letters > kMaxLetters) return "";
  for (const std::string& word : words) {
    const size_t distance = edit_distance(typed, word);
    if (distance < least) least = distance, nearest = word;
  }
  if (!nearest.empty() || letters < 3) return nearest;
  for (const std::string& word : words) {  // "--temper", "gen"
    if (word.starts_with(typed)) return word;
  }
  return "";
}

std::string unknown_words(CLI::App& app, const CommandWords& words,
                          const std::vector<std::string>& extras) {
  const CLI::App& at = words.command == nullptr ? app : *words.command;
  std::string path = "vitrine";
  for (size_t i = 0; i < words.begin; ++i) path += " " + words.words[i];
  if (at.get_require_subcommand_min() > 0) {
    return extras.empty() ? "" : unknown_command(at, path, extras.front());
  }
  // Where options are unknown, the words behind them are most likely their values.
  std::vector<std::string> unknown;
  std::ranges::copy_if(extras, std::back_inserter(unknown), [](const std::string& word) {
    return word.size() > 1 && word.starts_with('-');
  });
  const bool are_options = !unknown.empty();
  if (!are_options) unknown = extras;
  if (unknown.empty()) return "";
  const size_t named = std::min(unknown.size(), kMaxNamed);
  std::string line = fmt::format(
      "'{}'",
      fmt::join(unknown.begin(), unknown.begin() + static_cast<std::ptrdiff_t>(named), "', '"));
  if (unknown.size() > named) line += fmt::format(" and {} more", unknown.size() - named);
  line += unknown.size() == 1 ? " is" : " are";
  line += are_options ? fmt::format(" unknown to {}", path)
                      : fmt::format(" too much for {}; a text with spaces stands in quotes", path);
  if (!are_options) return line;
  std::vector<std::string> names;
  add_option_names(at, names);
  for (size_t i = 0; i < named; ++i) {
    const std::string word = unknown[i].substr(0, unknown[i].find('='));
    if (const std::string hint = llama_flag_hint(word); !hint.empty()) {
      return line + fmt::format("; '{}' is llama.cpp's, here it is {}", word, hint);
    }
    if (const std::string nearest = nearest_word(word, names); !nearest.empty()) {
      return line + fmt::format("; did you mean '{}'?", nearest);
    }
  }
  return line;
}

}  // namespace cli
