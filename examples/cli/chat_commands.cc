// SPDX-License-Identifier: Apache-2.0
#include "chat_commands.h"

#include <fmt/format.h>

#include <optional>
#include <string_view>

#include "common.h"

namespace cli {

namespace {

struct ChatCommand {
  std::string_view name, argument, help;
};

constexpr ChatCommand kCommands[] = {
    {"/help", "", "shows this"},
    {"/save", "FILE", "keeps the conversation in a session file"},
    {"/load", "FILE", "goes on with the conversation of a session file"},
    {"/undo", "", "forgets the last message and its answer"},
    {"/regen", "", "answers the last message again, with other random numbers"},
    {"/tool", "TEXT", "gives the result of a call; the model answers once all have theirs"},
    {"/system", "TEXT", "sets the system message; without a text there is none"},
    {"/compact", "", "forgets the oldest turns, so that half of the context is free"},
    {"/audit", "", "shows the experts that made the last answer"},
    {"/reset", "", "forgets the conversation but for the system message"},
    {"/exit", "", "ends, as /quit and Ctrl-D do"},
};

constexpr std::string_view kBlanks = " \t\n";

std::string help_text() {
  std::string text;
  for (const ChatCommand& command : kCommands) {
    text += fmt::format("{:<14}{}\n", fmt::format("{} {}", command.name, command.argument),
                        command.help);
  }
  return text +
         "A message that begins with / begins with a blank. Alt-Enter, or \\ at a line's end,\n"
         "begins a new line of a message; what is pasted is one message.\n";
}

std::string names() {
  std::string text;
  for (const ChatCommand& command : kCommands) {
    if (!text.empty()) text += &command == std::end(kCommands) - 1 ? " or " : ", ";
    text += command.name;
  }
  return text;
}

/// Returns the text without the blanks at both ends.
std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(kBlanks) + 1 - first));
}

void follow(Conversation& conversation, ChatOutput& output, const std::string& name,
            const std::string& argument) {
  if (name == "/help") output.page(help_text());
  if (name == "/save") conversation.save(argument);
  if (name == "/load") conversation.load(argument);
  if (name == "/undo") conversation.undo();
  if (name == "/regen") conversation.regenerate();
  if (name == "/tool") conversation.give_result(argument);
  if (name == "/system") {
    conversation.set_system(argument.empty() ? std::nullopt : std::optional(argument));
  }
  if (name == "/compact") conversation.compact();
  if (name == "/audit") output.page(conversation.audit());
  if (name == "/reset") conversation.reset();
}

}  // namespace

bool obey(Conversation& conversation, ChatOutput& output, const std::string& line) {
  const std::string name = line.substr(0, line.find_first_of(kBlanks));
  const std::string argument = trimmed(std::string_view(line).substr(name.size()));
  if ((name == "/exit" || name == "/quit") && argument.empty()) return false;
  for (const ChatCommand& command : kCommands) {
    if (command.name != name || (command.argument.empty() && !argument.empty())) continue;
    if (command.argument == "FILE" && argument.empty()) {
      conversation.refuse(name + ": names no file; expected " + name + " FILE");
      return true;
    }
    try {
      follow(conversation, output, name, argument);
    } catch (const OutputError&) {
      throw;
    } catch (const vitrine::Error& error) {
      conversation.refuse(error.what());
    }
    return true;
  }
  output.refused("'" + line + "' is no command; expected " + names());
  return true;
}

}  // namespace cli
