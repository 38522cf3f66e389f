// SPDX-License-Identifier: Apache-2.0
// What `generate --chat` and `chat` share: the model's chat template.
#pragma once

#include "answer_parts.h"
#include "common.h"
#include "vitrine/chat.h"
#include "vitrine/chat_tools.h"

namespace cli {

/// How large the file of --chat-template may be.
inline constexpr uint64_t kMaxTemplateBytes = uint64_t{4} << 20;

/// --system, --chat-template, --chat-variables and --answer-format.
struct ChatPromptOptions {
  std::string system, system_file, template_file, variables;
  std::string format;       ///< empty: the model's
  std::string given_tools;  ///< of --tools, as JSON
  const CLI::Option* system_option = nullptr;

  void add_to(CLI::App& command);
  bool is_given() const {
    return has_system() || !template_file.empty() || !variables.empty() || !format.empty();
  }
  /// True with an empty system message, too: templates that have one of their own drop it then.
  bool has_system() const {
    return (system_option != nullptr && system_option->count() > 0) || !system_file.empty();
  }
  /// The system message, where there is one.
  std::vector<vitrine::ChatMessage> first_messages() const;
  /// These options with a conversation's own tools (a JSON array, or nothing) among the variables;
  /// `place` begins what is refused.
  ChatPromptOptions with_tools(const std::string& tools_json, const std::string& place) const;
  /// These messages behind the system message, where one was given and they have none.
  std::vector<vitrine::ChatMessage> with_system(const std::vector<vitrine::ChatMessage>& messages,
                                                const std::string& place) const;
  /// What a template is given beside the messages.
  vitrine::ChatOptions chat_options() const;
  /// The prompt of these messages, with `opens_answer` up to where the assistant begins. Special
  /// tokens that the text spells become these tokens; none are added.
  std::string render(const vitrine::ChatTemplate& chat,
                     const std::vector<vitrine::ChatMessage>& messages,
                     bool opens_answer = true) const;
  /// How the answer to a prompt is taken apart. What a constraint asks for is the whole text, so
  /// that one has no parts unless its format was asked for.
  AnswerFormat answer_format(const vitrine::ChatTemplate& chat, const vitrine::Tokenizer& tokenizer,
                             const std::string& prompt, bool is_constrained) const;
};

/// What --chat-template names: a file, the name of a built-in one, or the template itself. Throws
/// kInvalidArgument where it is none of these.
std::string chat_template_source(const std::string& given);
/// The model's template, or that of --chat-template. Throws kBadFile where there is none.
vitrine::ChatTemplate open_chat_template(const vitrine::Checkpoint& checkpoint,
                                         const ChatPromptOptions& options);

}  // namespace cli
