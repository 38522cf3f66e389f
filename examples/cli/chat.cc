// SPDX-License-Identifier: Apache-2.0
// vitrine chat: a conversation, message by message, with the recorder on.
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "chat_commands.h"
#include "chat_history.h"
#include "chat_input.h"
#include "closing_note.h"
#include "common.h"
#include "lora_options.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr int kDefaultNewTokens = 512;

/// Until the input ends, a command or a signal ends it.
void talk(Conversation& conversation, ChatOutput& output, ChatInput& input, bool is_terminal) {
  std::string message;
  while (input.read(message)) {
    if (message.starts_with('/')) {
      if (!obey(conversation, output, message)) return;
    } else if (message.find_first_not_of(" \t\n") != std::string::npos) {
      conversation.say(message);
    }
    // In a terminal Ctrl-C ends an answer, not the conversation.
    if (interrupt_signal() == SIGINT && is_terminal) clear_interrupt();
    if (interrupt_signal() != 0) return;
  }
}

void check(ChatArguments& arguments) {
  std::vector<NamedPath> inputs = arguments.files();
  inputs.emplace_back("--load", arguments.load);
  std::vector<NamedPath> readers = inputs;
  readers.emplace_back("the conversation", "-");
  refuse_shared_input(readers);
  arguments.log.check(inputs);
  arguments.constraint.check();
  if (arguments.constraint.tools.is_given()) {
    arguments.chat_prompt.given_tools = arguments.constraint.tools.read().json();
  }
  arguments.speculation.check();
  if (!arguments.log.stream.empty() || !arguments.log.hidden_states.empty()) {
    refuse("--audit-stream and --hidden-states are for generate; expected --audit FILE here");
  }
  if (std::ranges::find(arguments.log.redact, "prompt") != arguments.log.redact.end()) {
    refuse(
        "--redact prompt is for one prompt; expected columns in a conversation: "
        "tokens,text,prediction,routing,norms");
  }
}

/// Nothing is kept in the clear beside a log that hides something.
std::string history_of(const ChatArguments& arguments) {
  const bool is_private = !arguments.log.encrypt_for.empty() || !arguments.log.redact.empty();
  return arguments.has_no_history || is_private ? "" : chat_history_path();
}

int run_chat(ChatArguments arguments) {
  arguments.sampling.resolve();
  check(arguments);
  ChatOutput output(arguments.has_json_lines, arguments.constraint.may_begin_anew(),
                    arguments.constraint.tools.is_given());
  Conversation conversation(arguments, output);
  const bool is_terminal = ::isatty(STDIN_FILENO) == 1;
  if (is_terminal) {
    write_remark("/help shows the commands; Alt-Enter, or \\ at a line's end, begins a new line");
  }
  catch_interrupts(false);
  try {
    const auto input = open_chat_input(is_terminal, history_of(arguments));
    talk(conversation, output, *input, is_terminal);
  } catch (const OutputError&) {  // nobody reads any more; the log is whole nevertheless
    conversation.finish("cancelled");
    throw;
  }
  const int signal = interrupt_signal();
  conversation.finish(signal != 0 ? "cancelled" : "end of conversation");
  if (signal != 0) return 128 + signal;
  return conversation.was_refused() && !is_terminal ? 2 : 0;
}

}  // namespace

void add_chat(CLI::App& app, Command& command) {
  auto arguments = std::make_shared<ChatArguments>();
  CLI::App* chat = app.add_subcommand("chat", "Answers messages, line by line");
  add_model(*chat, arguments->model);
  arguments->length.max_new_tokens = kDefaultNewTokens;
  arguments->length.add_to(
      *chat, "tokens of an answer at most",
      "positions that a conversation may have (default: " + std::to_string(kDefaultContext) +
          ", or the model's own limit where that is less)");
  chat->add_option("--load", arguments->load, "go on with the conversation that /save kept")
      ->check(not_empty());
  chat->add_flag("--json-lines", arguments->has_json_lines,
                 "print one JSON object an event: start, token, restart, end, note, refused");
  chat->add_flag("--no-history", arguments->has_no_history,
                 "keep nothing of what is typed for the next conversation");
  add_quiet(*chat);
  arguments->sampling.add_to(*chat, "default: a random one, which the closing line tells");
  arguments->chat_prompt.add_to(*chat);
  arguments->constraint.add_to(*chat);
  arguments->speculation.add_to(*chat);
  arguments->log.add_to(*chat);
  for (const char* refused : {"--audit-stream", "--hidden-states", "--hidden-positions"}) {
    chat->get_option(refused)->group("");  // known, and refused with a reason; not in the help
  }
  add_lora(*chat, arguments->device.lora);
  arguments->device.add_to(*chat);
  chat->callback([arguments, &command] { command = [arguments] { return run_chat(*arguments); }; });
}

}  // namespace cli
