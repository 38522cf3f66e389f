// SPDX-License-Identifier: Apache-2.0
// Every command and option, as CLI11 knows them: what the help, the man page, the page of the
// documents and the shells' completions are made of.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace cli {

struct OptionInfo {
  std::vector<std::string> names;    ///< "-t", "--threads"; of a positional one its name
  std::string value;                 ///< "N", "TEXT"; empty: a flag
  std::vector<std::string> choices;  ///< the words that it takes, where these are all
  std::string help;                  ///< its range and default included
  std::string section;               ///< "Options", "Sampling"
  std::string variable;              ///< its twin in the environment; empty: none
  bool repeats = false, is_positional = false;

  /// "-t,--threads N", "--kernels fused|reference".
  std::string heading() const;
};

struct CommandInfo {
  std::string path;                              ///< "audit show"; of the tool itself empty
  std::string description;                       ///< one sentence without its full stop
  std::vector<OptionInfo> positionals, options;  ///< without --help
  std::vector<std::string> commands;             ///< the names of those below
};

/// The tool itself, then its commands in their order, each before those below it.
std::vector<CommandInfo> command_tree(const CLI::App& app);

/// A section of options that several commands share.
struct SharedSection {
  std::string name;
  std::vector<OptionInfo> options;
};
/// In the order in which they come; "Options" is each command's own.
std::vector<SharedSection> shared_sections(const std::vector<CommandInfo>& tree);
/// Those of a command's options that stand in a section.
std::vector<OptionInfo> options_of(const CommandInfo& command, const std::string& section);

/// The section of what a command has for itself.
inline constexpr const char* kOwnSection = "Options";

}  // namespace cli
