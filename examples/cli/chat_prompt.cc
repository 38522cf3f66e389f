// SPDX-License-Identifier: Apache-2.0
#include "chat_prompt.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>

#include "builtin_templates.h"
#include "option_section.h"
#include "text_file.h"

namespace cli {

using vitrine::Error;
using vitrine::ErrorKind;

namespace {

constexpr size_t kMaxSystemBytes = size_t{4} << 20, kMaxTemplateName = 200;

}  // namespace

void ChatPromptOptions::add_to(CLI::App& command) {
  const OptionSection section(command, "Conversation");
  system_option = command.add_option("--system", system,
                                     "the system message of a conversation; '' is one that says "
                                     "nothing, in place of a template's own");
  command.add_option("--system-file", system_file, "a file with the system message")
      ->check(not_empty())
      ->excludes("--system");
  command
      .add_option("--chat-template", template_file,
                  "a chat template in place of the model's own: a file (Jinja), the name of a "
                  "built-in one (chatml, llama3, gemma, …, as of llama.cpp), or the template "
                  "itself")
      ->check(not_empty());
  command
      .add_option("--chat-variables", variables,
                  "more variables of the chat template, a JSON object: '{\"enable_thinking\": "
                  "false}'")
      ->check(not_empty());
  command
      .add_option("--answer-format", format,
                  "how the model writes reasoning and calls of tools: " +
                      fmt::format("{}", fmt::join(vitrine::chat_output_formats(), ", ")) +
                      " (default: what its chat template or vocabulary tells; plain under a "
                      "constraint)")
      ->check(CLI::IsMember(vitrine::chat_output_formats()));
}

std::vector<vitrine::ChatMessage> ChatPromptOptions::first_messages() const {
  if (!has_system()) return {};
  if (system_file.empty()) return {{"system", system}};
  std::string text = read_text_file(system_file, kMaxSystemBytes);
  if (text.ends_with('\n')) text.pop_back();
  return {{"system", text}};
}

ChatPromptOptions ChatPromptOptions::with_tools(const std::string& tools_json,
                                                const std::string& place) const {
  ChatPromptOptions all = *this;
  if (tools_json.empty()) return all;
  const std::string given = variables.empty() ? "{}" : variables;
  auto json = nlohmann::ordered_json::parse(given, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return all;  // the template refuses it
  if (json.contains("tools") || !given_tools.empty()) {
    refuse(fmt::format("{}\"tools\" stand in the conversation and in {}; expected one of them",
                       place, given_tools.empty() ? "--chat-variables" : "--tools"));
  }
  json["tools"] = nlohmann::ordered_json::parse(tools_json);
  all.variables = json.dump();
  return all;
}

std::vector<vitrine::ChatMessage> ChatPromptOptions::with_system(
    const std::vector<vitrine::ChatMessage>& messages, const std::string& place) const {
  std::vector<vitrine::ChatMessage> all = first_messages();
  if (!all.empty() && !messages.empty() && messages[0].role == "system") {
    refuse(place + "the conversation has a system message, and --system is another; expected one");
  }
  all.insert(all.end(), messages.begin(), messages.end());
  return all;
}

vitrine::ChatOptions ChatPromptOptions::chat_options() const {
  vitrine::ChatOptions options;
  options.variables_json = variables;
  options.tools_json = given_tools;
  return options;
}

std::string ChatPromptOptions::render(const vitrine::ChatTemplate& chat,
                                      const std::vector<vitrine::ChatMessage>& messages,
                                      bool opens_answer) const {
  vitrine::ChatOptions options = chat_options();
  options.add_generation_prompt = opens_answer;
  return vitrine::render_with_calls(chat, messages, options);
}

AnswerFormat ChatPromptOptions::answer_format(const vitrine::ChatTemplate& chat,
                                              const vitrine::Tokenizer& tokenizer,
                                              const std::string& prompt,
                                              bool is_constrained) const {
  AnswerFormat found;
  if (!format.empty()) {
    found.name = format;
  } else if (!is_constrained) {
    found.name = vitrine::find_chat_output_format(chat, tokenizer);
  }
  found.prompt = prompt;
  found.tools_json = given_tools;
  // The template has read them already.
  const auto given = nlohmann::json::parse(variables, nullptr, /*allow_exceptions=*/false);
  if (given.is_object() && given.contains("tools") && given["tools"].is_array()) {
    found.tools_json = given["tools"].dump();
  }
  return found;
}

std::string chat_template_source(const std::string& given) {
  std::error_code error;
  const bool is_text = given.find("{{") != given.npos || given.find("{%") != given.npos;
  if (is_text) return given;
  const bool is_file = is_standard_input(given) || std::filesystem::exists(given, error);
  if (is_file) return read_text_file(given, kMaxTemplateBytes);
  if (std::string source = builtin_template(given); !source.empty()) return source;
  refuse(fmt::format(
      "--chat-template: '{}' is not a file, nor the name of a built-in template; expected a file, "
      "or one of {}",
      given, fmt::join(builtin_template_names(), ", ")));
}

vitrine::ChatTemplate open_chat_template(const vitrine::Checkpoint& checkpoint,
                                         const ChatPromptOptions& options) {
  const std::string config = checkpoint.tokenizer_config_json();
  if (!options.template_file.empty()) {
    return vitrine::ChatTemplate::parse(chat_template_source(options.template_file),
                                        options.template_file.substr(0, kMaxTemplateName), config);
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
