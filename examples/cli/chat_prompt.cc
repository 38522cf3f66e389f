// SPDX-License-Identifier: Apache-2.0
#include "chat_prompt.h"

#include <fmt/format.h>

#include "option_section.h"

namespace cli {

using vitrine::Error;
using vitrine::ErrorKind;

namespace {}  // namespace

void ChatPromptOptions::add_to(CLI::App& command) {
  const OptionSection section(command, "Conversation");
  system_option = command.add_option("--system", system,
                                     "the system message of a conversation; '' is one that says "
                                     "nothing, in place of a template's own");
  command
      .add_option("--chat-template", template_file,
                  "a file with the chat template (Jinja) in place of the model's own")
      ->check(not_empty());
  command
      .add_option("--chat-variables", variables,
                  "more variables of the chat template, a JSON object: '{\"enable_thinking\": "
                  "false}'")
      ->check(not_empty());
}

std::vector<vitrine::ChatMessage> ChatPromptOptions::first_messages() const {
  if (!has_system()) return {};
  return {{"system", system}};
}

std::string ChatPromptOptions::render(const vitrine::ChatTemplate& chat,
                                      const std::vector<vitrine::ChatMessage>& messages,
                                      bool opens_answer) const {
  vitrine::ChatOptions options;
  options.add_generation_prompt = opens_answer;
  options.variables_json = variables;
  return chat.render(messages, options);
}

vitrine::ChatTemplate open_chat_template(const vitrine::Checkpoint& checkpoint,
                                         const ChatPromptOptions& options) {
  const std::string config = checkpoint.tokenizer_config_json();
  if (!options.template_file.empty()) {
    return vitrine::ChatTemplate::parse(
        vitrine::read_text_file(options.template_file, kMaxTemplateBytes), options.template_file,
        config);
  }
  std::optional<vitrine::ChatTemplate> chat =
      vitrine::ChatTemplate::from_tokenizer_config(config, checkpoint.tokenizer_config_name());
  if (!chat) {
    throw Error(ErrorKind::kBadFile,
                fmt::format("{}: has no chat template ({}); expected a model that was trained on "
                            "conversations: give its template with --chat-template FILE, or "
                            "generate without --chat",
                            checkpoint.path(),
                            checkpoint.is_gguf() ? "tokenizer.chat_template"
                                                 : "chat_template in tokenizer_config.json, or "
                                                   "chat_template.jinja"));
  }
  return std::move(*chat);
}

}  // namespace cli
