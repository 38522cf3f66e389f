// SPDX-License-Identifier: Apache-2.0
// The room `chat`: a model's chat template, which turns messages into the prompt that it was
// trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"
#include "vitrine/tokenizer.h"

namespace vitrine {

/// One turn of a conversation.
struct ChatMessage {
  std::string role;     ///< "system", "user", "assistant", …
  std::string content;  ///< bytes that are no UTF-8 become U+FFFD
  /// A JSON object of further fields ("reasoning_content", "tool_calls", "tool_call_id", …), or
  /// nothing. ChatAnswer::fields_json has those of an answer.
  std::string fields_json = {};
};

/// What a rendering is given besides the messages.
struct ChatOptions {
  /// True ends the text with what opens the assistant's turn.
  bool add_generation_prompt = true;
  /// A JSON object of further variables of the template: "documents", "enable_thinking", … Text of
  /// a value that spells a special token means that token, as text of a message does.
  std::string variables_json = {};
  /// The variable "tools": functions that the answer may call, a JSON array (ChatTools::json), or
  /// nothing. It may stand in `variables_json` in its place.
  std::string tools_json = {};
  /// Seconds since 1970 for strftime_now, in the process's time zone; nothing: the clock.
  std::optional<int64_t> now = {};
  size_t max_output_bytes = size_t{64} << 20;  ///< beyond it rendering fails
  /// The work that a template may do, in units of about a byte read or made.
  uint64_t max_work = uint64_t{1} << 28;
};

/// A Jinja template as published chat models carry it, rendered as transformers renders it (its
/// sandbox, trim_blocks, lstrip_blocks, loop controls, its tojson). docs/chat.md lists what it
/// knows.
///
///     auto chat = ChatTemplate::from_tokenizer_config(checkpoint.tokenizer_config_json(),
///                                                     checkpoint.tokenizer_config_name());
///     std::string prompt = chat->render({{{"user", "What is an expert?"}}});
///
/// A template is a file from outside: it can read nothing but its variables, and nesting, work and
/// output are bounded. Immutable: any number of threads may render at once.
class VITRINE_API ChatTemplate {
 public:
  /// `name` stands for the file in messages. The special tokens of `tokenizer_config_json` ("":
  /// none) become variables, whatever template it has itself. Throws kBadFile: "name: line N: what
  /// was found; what was expected".
  static ChatTemplate parse(std::string_view source, const std::string& name,
                            std::string_view tokenizer_config_json = {});
  /// The template or templates of a tokenizer_config.json, whose special tokens ("bos_token", …)
  /// become variables. Nothing where it has none. Of several templates "default" is rendered, or
  /// "tool_use" where it is there and the variables have tools. Throws kBadFile.
  static std::optional<ChatTemplate> from_tokenizer_config(std::string_view json,
                                                           const std::string& name);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// Returns the prompt. Throws kInvalidArgument where the template refuses the messages
  /// (raise_exception), a message's fields are no JSON object or the tools no JSON array, kBadFile
  /// where it fails or goes beyond a limit.
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;
  /// Renders with "messages" among `variables_json`, so that a message may hold more than text.
  std::string render(const ChatOptions& options) const;
  /// Returns the names of the templates; one that is alone is "default".
  std::vector<std::string> names() const;
  /// Returns the text of the templates, one behind the other.
  std::string source() const;
  /// Returns the text of a special token of the tokenizer_config.json ("bos_token", "eos_token",
  /// …); empty where it names none.
  std::string special_token(std::string_view name) const;

  struct Impl;

 private:
  explicit ChatTemplate(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Ids that end an assistant's turn, ascending: the template's eos_token, and the special tokens of
/// the vocabulary that published chat models end a turn with (`<|im_end|>`, `<|eot_id|>`,
/// `<end_of_turn>`, …). The model's own end-of-text ids come on top of them
/// (ModelSummary::eos_token_ids).
VITRINE_API std::vector<int32_t> end_of_turn_ids(const Tokenizer& tokenizer,
                                                 const ChatTemplate& chat);

}  // namespace vitrine
