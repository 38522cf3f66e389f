// SPDX-License-Identifier: Apache-2.0
#include "command_pages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "command_words.h"
#include "vitrine/version.h"

namespace cli {

namespace {

constexpr const char* kHead =
    R"(# The command line

You can look up every command and every option here; `vitrine --markdown` prints this page and `vitrine --man` the man page, both from what `--help` knows, and a test compares the page with it. What an option is for stands where its capability is explained: [generating](../README.md), [sampling](sampling.md), [constraints](constraints.md), [conversations](chat.md), [the audit log](audit-log.md), [federations](federation.md), [ledgers](ledger.md), [GGUF files](gguf.md), [speed](performance.md).

Exit codes: 0; 1 for a failure (a disk that is full, an answer that does not meet its constraint, runs that differ); 2 for a mistake of the user's (an option, a file that is none of ours); 128 and the signal's number after Ctrl-C or SIGTERM, and 141, in silence, where nobody reads the output any more. What a command says beside its output goes to standard error, one line each.

Every option with two dashes has a twin in the environment, `VITRINE_MAX_NEW_TOKENS` for `--max-new-tokens`; a flag's is `1` or `0`. The command line wins; under `audit`, so does what a log says of its run (`--model`, `--device`, `--kernels`, `--rope-frequencies`, `--kv-type`, `--activation-type`). `vitrine --completion bash` and `zsh` print completions (`source <(vitrine --completion bash)`).
)";

constexpr const char* kEvents = R"(
## JSON lines

`--json-lines` prints one JSON object a line, one line an event, as it comes:

| `event` | |
|---|---|
| `start` | An answer begins: `answer` (its number, from 0, in all its events), `model`, `prompt_tokens`, `reused_tokens`, `seed` |
| `token` | `token` (its id), `text` (what became certain with it, maybe nothing), with `--logprobs` `logprob` and `best`. What becomes certain only at the end has no `token` |
| `restart` | The answer begins anew, as attempt `attempt`: the text so far does not stand |
| `end` | `text`, `reason`, `tokens`, `is_complete`, `failure` (why it is not what its constraint asks for), `prefill_seconds`, `decode_seconds` |
| `note` | In a conversation: what a command of the user's brought about, as `text` |
| `refused` | In a conversation: why a message cannot be answered, as `text` |
)";

constexpr const char* kSeveral = "Several commands";
constexpr size_t kFewest = 3;  // commands that make an option a shared one

bool is_same(const OptionInfo& one, const OptionInfo& other) {
  return one.names == other.names && one.help == other.help && one.value == other.value &&
         one.choices == other.choices;
}

/// Options that stand in as many commands word for word move into a section of their own.
std::vector<CommandInfo> with_shared_options(std::vector<CommandInfo> tree) {
  const auto count = [&](const OptionInfo& option) {
    size_t commands = 0;
    for (const CommandInfo& command : tree) {
      commands += std::ranges::any_of(command.options,
                                      [&](const OptionInfo& one) { return is_same(one, option); });
    }
    return commands;
  };
  std::vector<std::pair<OptionInfo*, bool>> shared;
  for (CommandInfo& command : tree) {
    for (OptionInfo& option : command.options) {
      shared.emplace_back(&option, option.section == kOwnSection && count(option) >= kFewest);
    }
  }
  for (const auto& [option, is_shared] : shared) {
    if (is_shared) option->section = kSeveral;
  }
  return tree;
}

std::string long_name(const OptionInfo& option) { return option.names.back(); }

std::string anchor(std::string title) {
  std::ranges::transform(title, title.begin(), [](unsigned char c) {
    return c == ' ' ? '-' : static_cast<char>(std::tolower(c));
  });
  return title;
}

/// What a command has of a shared section: "" for all of it, "without `--x`", or "only `--y`".
std::string share_of(const CommandInfo& command, const SharedSection& section) {
  std::vector<std::string> had, missing;
  for (const OptionInfo& option : section.options) {
    const bool is_there = std::ranges::any_of(
        command.options, [&](const OptionInfo& one) { return one.names == option.names; });
    (is_there ? had : missing).push_back("`" + long_name(option) + "`");
  }
  if (missing.empty()) return "";
  if (missing.size() < had.size()) return fmt::format(" without {}", fmt::join(missing, ", "));
  return fmt::format(": {}", fmt::join(had, ", "));
}

/// What a command says for itself: its own options, and shared ones that it words otherwise.
std::vector<OptionInfo> own_options(const CommandInfo& command,
                                    const std::vector<SharedSection>& sections) {
  std::vector<OptionInfo> own = command.positionals;
  for (const OptionInfo& option : command.options) {
    const auto section = std::ranges::find(sections, option.section, &SharedSection::name);
    const bool is_told = section != sections.end() &&
                         std::ranges::any_of(section->options, [&](const OptionInfo& one) {
                           return is_same(one, option);
                         });
    if (!is_told) own.push_back(option);
  }
  return own;
}

std::string cell(std::string text) {
  for (size_t at = text.find('|'); at != text.npos; at = text.find('|', at + 2)) {
    text.insert(at, "\\");
  }
  return text;
}

std::string table(const std::vector<OptionInfo>& options) {
  std::string text = "| | |\n|---|---|\n";
  for (const OptionInfo& option : options) {
    text += fmt::format("| `{}` | {} |\n", cell(option.heading()), cell(option.help));
  }
  return text;
}

/// Text of a man page: what troff would read otherwise is escaped.
std::string roff(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else {
      out += c;
    }
  }
  return out.starts_with('.') ? "\\&" + out : out;
}

std::string roff_options(const std::vector<OptionInfo>& options) {
  std::string text;
  for (const OptionInfo& option : options) {
    text += fmt::format(".TP\n.B {}\n{}\n", roff(option.heading()), roff(option.help));
  }
  return text;
}

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

}  // namespace

std::string markdown_page(const std::vector<CommandInfo>& commands) {
  const std::vector<CommandInfo> tree = with_shared_options(commands);
  const std::vector<SharedSection> sections = shared_sections(tree);
  std::string page = kHead;
  for (const CommandInfo& command : tree) {
    if (command.options.empty() && command.positionals.empty()) continue;
    page += fmt::format("\n## vitrine{}{}\n\n{}.\n", command.path.empty() ? "" : " ", command.path,
                        command.description);
    const std::vector<OptionInfo> own = own_options(command, sections);
    if (!own.empty()) page += "\n" + table(own);
    std::vector<std::string> shared;
    for (const SharedSection& section : sections) {
      if (options_of(command, section.name).empty()) continue;
      shared.push_back(fmt::format("[{}](#{}){}", section.name, anchor(section.name),
                                   share_of(command, section)));
    }
    if (!shared.empty()) page += fmt::format("\nAnd of {}.\n", fmt::join(shared, "; "));
  }
  for (const SharedSection& section : sections) {
    page += fmt::format("\n## {}\n\n{}", section.name, table(section.options));
  }
  page += kEvents;
  page +=
      "\n## llama.cpp's names\n\nEvery command that has the option takes these names, too.\n\n"
      "| llama.cpp | Vitrine |\n|---|---|\n";
  for (const auto& [name, meaning] : llama_flag_meanings()) {
    page += meaning.starts_with("--") ? fmt::format("| `{}` | `{}` |\n", name, meaning)
                                      : fmt::format("| `{}` | {} |\n", name, meaning);
  }
  return page;
}

std::string man_page(const std::vector<CommandInfo>& commands) {
  const std::vector<CommandInfo> tree = with_shared_options(commands);
  const std::vector<SharedSection> sections = shared_sections(tree);
  std::string page = fmt::format(
      ".TH VITRINE 1 \"\" \"vitrine {0}\" \"User Commands\"\n"
      ".SH NAME\nvitrine \\- {1}\n"
      ".SH SYNOPSIS\n.B vitrine\n.I COMMAND\n.RI [ OPTION ]...\n",
      VITRINE_VERSION, roff(tree.front().description));
  page += ".SH COMMANDS\n";
  for (const CommandInfo& command : tree) {
    if (command.path.empty() || (command.options.empty() && command.positionals.empty())) continue;
    page += fmt::format(".SS vitrine {}\n{}.\n", roff(command.path), roff(command.description));
    page += roff_options(own_options(command, sections));
    std::vector<std::string> shared;
    for (const SharedSection& section : sections) {
      if (!options_of(command, section.name).empty()) shared.push_back(upper(section.name));
    }
    if (!shared.empty()) page += fmt::format(".PP\nAnd of {}.\n", fmt::join(shared, ", "));
  }
  for (const SharedSection& section : sections) {
    page += fmt::format(".SH {}\n{}", upper(section.name), roff_options(section.options));
  }
  page += ".SH OPTIONS OF THE TOOL\n" + roff_options(tree.front().options);
  page += ".SH LLAMA.CPP\\(aqS NAMES\n";
  for (const auto& [name, meaning] : llama_flag_meanings()) {
    page += fmt::format(".TP\n.B {}\n{}\n", roff(name), roff(meaning));
  }
  page +=
      ".SH ENVIRONMENT\nEvery option with two dashes has a twin: VITRINE_MAX_NEW_TOKENS for "
      "\\-\\-max\\-new\\-tokens. The command line wins.\n"
      ".SH EXIT STATUS\n0; 1 for a failure; 2 for a mistake of the user\\(aqs; 128 and the number "
      "of "
      "the signal that ended it, 141 where nobody reads the output any more.\n";
  return page;
}

}  // namespace cli
