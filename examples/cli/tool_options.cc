// SPDX-License-Identifier: Apache-2.0
#include "tool_options.h"

#include <fmt/format.h>

#include "common.h"
#include "option_section.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kMaxToolsFileBytes = size_t{16} << 20;

}  // namespace

void ToolOptions::add_to(CLI::App& command) {
  const OptionSection section(command, "Conversation");
  command
      .add_option("--tools", definitions,
                  "functions that the answer may call: OpenAI's definitions, a JSON array, a file "
                  "or itself. Each call is a whole one, with arguments that its schema accepts")
      ->check(not_empty());
  command
      .add_option("--tool-choice", choice,
                  "auto (an answer or calls; the default), none, required (a call at least), or "
                  "the name of the function that is called")
      ->check(not_empty());
}

void ToolOptions::check() const {
  if (!choice.empty() && !is_given()) {
    refuse("--tool-choice does nothing here; expected --tools FILE beside it");
  }
}

bool ToolOptions::is_text() const {
  const size_t first = definitions.find_first_not_of(" \t\r\n");
  return first != definitions.npos && definitions[first] == '[';
}

vitrine::ChatTools ToolOptions::read() const {
  if (is_text()) return vitrine::ChatTools::parse(definitions, "--tools");
  return vitrine::ChatTools::parse(read_text_file(definitions, kMaxToolsFileBytes), definitions);
}

vitrine::ToolChoice ToolOptions::read_choice() const {
  return choice.empty() ? vitrine::ToolChoice{} : vitrine::ToolChoice::parse(choice);
}

std::vector<NamedPath> ToolOptions::files() const {
  if (!is_given() || is_text()) return {};
  return {{"--tools", definitions}};
}

ToolCalling::ToolCalling(const ToolOptions& options, const vitrine::ChatTemplate& chat,
                         const vitrine::Tokenizer& tokenizer, const std::string& format)
    : tools_(options.read()),
      choice_(options.read_choice()),
      chat_(chat),
      tokenizer_(tokenizer),
      template_source_(chat.source()),
      format_(format.empty() ? vitrine::find_tool_call_format(chat, tokenizer) : format) {}

vitrine::ToolCallTags ToolCalling::tags(const std::string& prompt) const {
  return vitrine::tool_call_tags(
      format_, tools_, tokenizer_,
      {.choice = choice_, .prompt = prompt, .template_source = template_source_});
}

void ToolCalling::warn_if_untold(const std::string& model,
                                 const std::vector<vitrine::ChatMessage>& messages,
                                 const vitrine::ChatOptions& options) const {
  if (vitrine::writes_tools(chat_, messages, options)) return;
  write_note(
      fmt::format("warning: the chat template of {} does not write tools, so that the model is not "
                  "told of them; describe them in --system, or give a template that writes them "
                  "(--chat-template). Calls are written as {} does",
                  model, format_));
}

}  // namespace cli
