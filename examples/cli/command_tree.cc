// SPDX-License-Identifier: Apache-2.0
#include "command_tree.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "environment.h"

namespace cli {

namespace {

constexpr double kMaxRangeEnd = 1e6;  // a range up to more than that says nothing

/// CLI11's "TEXT:{f32,f16}", "INT:INT in [1 - 256]" and "UINT:SIZE [b, kb(=1024b), …]" taken apart.
void read_type(const std::string& type, OptionInfo& info, std::vector<std::string>& notes) {
  const size_t colon = type.find(':');
  const std::string kind = type.substr(0, colon);
  const std::string check = colon == type.npos ? "" : type.substr(colon + 1);
  info.value = kind == "FLOAT" ? "X" : kind == "INT" || kind == "UINT" ? "N" : kind;
  if (check.starts_with("SIZE")) info.value = "SIZE";
  if (check.starts_with('{')) {
    std::string word;
    for (const char c : check.substr(1)) {
      if (c != ',' && c != '}') {
        word += c;
        continue;
      }
      info.choices.push_back(std::exchange(word, ""));
      if (c == '}') break;
    }
  }
  const size_t open = check.find(" in ["), dash = check.find(" - "), close = check.find(']');
  if (open == check.npos || dash == check.npos || close == check.npos) return;
  const std::string low = check.substr(open + 5, dash - open - 5);
  const std::string high = check.substr(dash + 3, close - dash - 3);
  if (std::strtod(high.c_str(), nullptr) < kMaxRangeEnd) notes.push_back(low + " to " + high);
}

OptionInfo option_info(const CLI::Option& option, const std::string& section, bool is_positional) {
  OptionInfo info;
  info.is_positional = is_positional;
  if (is_positional) {
    info.names = {option.get_name(true)};
  } else {
    for (const std::string& name : option.get_snames()) info.names.push_back("-" + name);
    for (const std::string& name : option.get_lnames()) info.names.push_back("--" + name);
    info.variable = environment_name(option);
  }
  info.section = section;
  std::vector<std::string> notes;
  if (option.get_items_expected_max() > 0) read_type(option.get_type_name(), info, notes);
  if (!option.get_default_str().empty()) notes.push_back("default: " + option.get_default_str());
  info.repeats = option.get_expected_max() > 1 && !info.value.empty();
  info.help = option.get_description();
  if (!notes.empty()) info.help += fmt::format(" ({})", fmt::join(notes, "; "));
  return info;
}

void add_command_options(const CLI::App& app, const std::string& section, CommandInfo& info) {
  for (const CLI::Option* option : app.get_options()) {
    if (option == app.get_help_ptr() || option->get_group().empty()) continue;
    const std::string own = section.empty() ? option->get_group() : section;
    if (option->get_positional()) info.positionals.push_back(option_info(*option, own, true));
    if (option->nonpositional()) info.options.push_back(option_info(*option, own, false));
  }
}

void add_commands(const CLI::App& app, const std::string& path, std::vector<CommandInfo>& tree) {
  CommandInfo info;
  info.path = path;
  info.description = app.get_description();
  if (info.description.ends_with('.')) info.description.pop_back();
  add_command_options(app, "", info);
  std::vector<const CLI::App*> commands;
  for (const CLI::App* below : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (below->get_name().empty()) {  // options of which one is chosen
      add_command_options(*below, kOwnSection, info);
    } else if (!below->get_group().empty()) {
      commands.push_back(below);
      info.commands.push_back(below->get_name());
    }
  }
  tree.push_back(std::move(info));
  for (const CLI::App* below : commands) {
    add_commands(*below, path.empty() ? below->get_name() : path + " " + below->get_name(), tree);
  }
}

}  // namespace

std::string OptionInfo::heading() const {
  std::string text = fmt::format("{}", fmt::join(names, ","));
  if (!value.empty()) {
    text += " " + (choices.empty() ? value : fmt::format("{}", fmt::join(choices, "|")));
  }
  return text + (repeats ? " …" : "");
}

std::vector<CommandInfo> command_tree(const CLI::App& app) {
  std::vector<CommandInfo> tree;
  add_commands(app, "", tree);
  return tree;
}

std::vector<SharedSection> shared_sections(const std::vector<CommandInfo>& tree) {
  std::vector<SharedSection> sections;
  for (const CommandInfo& command : tree) {
    for (const OptionInfo& option : command.options) {
      if (option.section == kOwnSection) continue;
      auto section = std::ranges::find(sections, option.section, &SharedSection::name);
      if (section == sections.end()) {
        sections.push_back({option.section, {}});
        section = std::prev(sections.end());
      }
      const bool is_there = std::ranges::any_of(
          section->options, [&](const OptionInfo& one) { return one.names == option.names; });
      if (!is_there) section->options.push_back(option);
    }
  }
  return sections;
}

std::vector<OptionInfo> options_of(const CommandInfo& command, const std::string& section) {
  std::vector<OptionInfo> options;
  std::ranges::copy_if(command.options, std::back_inserter(options),
                       [&](const OptionInfo& option) { return option.section == section; });
  return options;
}

}  // namespace cli
