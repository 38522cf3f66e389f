// SPDX-License-Identifier: Apache-2.0
#include "completions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace cli {

namespace {

/// In single quotes, for a shell.
std::string shell_quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::vector<std::string> option_names(const CommandInfo& command) {
  std::vector<std::string> names;
  for (const OptionInfo& option : command.options) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  names.emplace_back("--help");
  return names;
}

/// A text within the brackets of an argument of zsh's _arguments.
std::string bracketed(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == '\\') out += '\\';
    out += c;
  }
  return "[" + out + "]";
}

/// ":value:(f32 f16)", ":value:_files"; of numbers nothing is offered.
std::string zsh_value(const OptionInfo& option) {
  if (option.value.empty()) return "";
  if (!option.choices.empty()) return fmt::format(":value:({})", fmt::join(option.choices, " "));
  constexpr std::array<std::string_view, 3> kNumbers = {"N", "X", "SIZE"};
  const bool is_number = std::ranges::find(kNumbers, option.value) != kNumbers.end();
  return is_number ? ":number: " : ":value:_files";
}

std::string zsh_arguments(const CommandInfo& command) {
  std::string text = "_arguments -s";
  for (const OptionInfo& option : command.options) {
    for (const std::string& name : option.names) {
      // A name rules the others out, and itself where it comes once.
      const std::string others =
          option.repeats ? "*" : fmt::format("({})", fmt::join(option.names, " "));
      text += " \\\n        " +
              shell_quoted(others + name + bracketed(option.help) + zsh_value(option));
    }
  }
  text += " \\\n        '--help[print what the command takes]'";
  if (!command.positionals.empty()) text += " \\\n        '*:file:_files'";
  return text;
}

}  // namespace

std::string bash_completion(const std::vector<CommandInfo>& tree) {
  std::string text =
      "# bash completion for vitrine; made by vitrine --completion bash\n"
      "_vitrine() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command= commands= options= i\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case \"$command ${COMP_WORDS[i]}\" in\n";
  for (const CommandInfo& command : tree) {
    if (!command.path.empty()) {
      text += fmt::format("      ' {0}') command=' {0}' ;;\n", command.path);
    }
  }
  text +=
      "      *) break ;;\n"
      "    esac\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case \"$command $before\" in\n";
  for (const CommandInfo& command : tree) {
    const std::string path = command.path.empty() ? "" : " " + command.path;
    for (const OptionInfo& option : command.options) {
      if (option.choices.empty()) continue;
      std::vector<std::string> patterns;
      for (const std::string& name : option.names)
        patterns.push_back("'" + path + " " + name + "'");
      text += fmt::format("    {}) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n",
                          fmt::join(patterns, "|"), fmt::join(option.choices, " "));
    }
  }
  text +=
      "  esac\n"
      "  case \"$command\" in\n";
  for (const CommandInfo& command : tree) {
    text += fmt::format("    '{}{}') commands='{}'\n      options='{}' ;;\n",
                        command.path.empty() ? "" : " ", command.path,
                        fmt::join(command.commands, " "), fmt::join(option_names(command), " "));
  }
  text +=
      "  esac\n"
      "  if [[ $word == -* ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$options\" -- \"$word\"))\n"
      "  elif [[ -n $commands ]]; then\n"
      "    COMPREPLY=($(compgen -W \"$commands\" -- \"$word\"))\n"
      "  fi\n"
      "}\n"
      "complete -o default -F _vitrine vitrine\n";
  return text;
}

std::string zsh_completion(const std::vector<CommandInfo>& tree) {
  std::string text =
      "#compdef vitrine\n"
      "# zsh completion for vitrine; made by vitrine --completion zsh\n"
      "_vitrine() {\n"
      "  local command='' i\n"
      "  for ((i = 2; i < CURRENT; ++i)); do\n"
      "    case \"$command ${words[i]}\" in\n";
  for (const CommandInfo& command : tree) {
    if (!command.path.empty()) {
      text += fmt::format("      ' {0}') command=' {0}' ;;\n", command.path);
    }
  }
  text +=
      "      *) break ;;\n"
      "    esac\n"
      "  done\n"
      "  # What _arguments sees begins with the command's last name.\n"
      "  shift $((i - 2)) words\n"
      "  ((CURRENT -= i - 2))\n"
      "  local -a commands\n"
      "  case \"$command\" in\n";
  for (const CommandInfo& command : tree) {
    const std::string path = command.path.empty() ? "" : " " + command.path;
    text += fmt::format("    '{}')\n", path);
    if (!command.commands.empty()) {
      text += "      commands=(";
      for (const std::string& name : command.commands) {
        const std::string whole = command.path.empty() ? name : command.path + " " + name;
        const auto below = std::ranges::find(tree, whole, &CommandInfo::path);
        text += "\n        " + shell_quoted(name + ":" + below->description);
      }
      text += ")\n      ((CURRENT == 2)) && _describe command commands\n";
    }
    text += "      " + zsh_arguments(command) + "\n      ;;\n";
  }
  text +=
      "  esac\n"
      "}\n"
      "if [[ $zsh_eval_context[-1] == loadautofunc ]]; then\n"
      "  _vitrine \"$@\"\n"
      "else\n"
      "  compdef _vitrine vitrine\n"
      "fi\n";
  return text;
}

}  // namespace cli
