// SPDX-License-Identifier: Apache-2.0
// The room `chat`: functions that an answer may call, and what its text must be so that each call
// is a whole one of a known function.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/chat.h"
#include "vitrine/core.h"
#include "vitrine/tokenizer.h"

namespace vitrine {

/// A function that an answer may call.
struct ToolFunction {
  std::string name;        ///< letters, digits and the characters _ - . : / alone
  std::string parameters;  ///< the JSON Schema of its arguments, an object's
};

/// The functions of a conversation. Immutable; copies share.
class VITRINE_API ChatTools {
 public:
  /// Reads OpenAI's definitions: a JSON array of {"type": "function", "function": {"name",
  /// "description", "parameters"}}, or of such functions themselves. A function without
  /// "parameters" takes no arguments. `name` stands for the file in messages. Throws kBadFile
  /// (with a JSON pointer, what was found and what was expected).
  static ChatTools parse(std::string_view json, const std::string& name);

  /// Returns the definitions in OpenAI's form, for ChatOptions::tools_json and
  /// ChatOutputOptions::tools_json.
  const std::string& json() const;
  /// Returns the functions, in their order; at least one.
  std::span<const ToolFunction> functions() const;

 private:
  struct Impl;
  explicit ChatTools(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

/// Whether an answer calls functions, as OpenAI's `tool_choice` says it.
struct ToolChoice {
  /// What is asked for.
  enum class Kind : uint8_t {
    kAuto,      ///< an answer, calls, or both
    kNone,      ///< an answer without a call
    kRequired,  ///< at least one call
    kFunction,  ///< a call of one function
  };
  Kind kind = Kind::kAuto;  ///< what is asked for
  std::string function{};   ///< the function's name, for kFunction

  /// Reads "auto", "none", "required", the name of a function, or OpenAI's object
  /// {"type": "function", "function": {"name": …}}. Throws kInvalidArgument.
  VITRINE_API static ToolChoice parse(std::string_view text);
};

/// What is known of the answer that may call functions.
struct ToolCallOptions {
  ToolChoice choice = {};  ///< whether it calls functions
  bool parallel = true;    ///< it may have several calls, where the format has room for them
  /// The prompt that the answer continues: where it ends within reasoning (`<think>`), the answer
  /// begins there.
  std::string_view prompt = {};
  /// The chat template's text: where it writes the marks of reasoning, reasoning may come before a
  /// call that must come.
  std::string_view template_source = {};
};

/// What an answer with calls is, as data for `Grammar::tags`.
struct ToolCallTags {
  std::string json;  ///< structural tags (docs/constraints.md)
  /// Special tokens that the answer writes as text, by id: what TokenTable::with gives a table.
  std::vector<std::pair<int32_t, std::string>> marks;
};

/// Names of the answer formats (chat_output.h) whose calls can be constrained, in alphabetical
/// order.
VITRINE_API std::vector<std::string> tool_call_formats();

/// The format in which a model calls functions: that of its answers, or "hermes" where its template
/// and vocabulary know none ("plain", "think").
VITRINE_API std::string find_tool_call_format(const ChatTemplate& chat, const Tokenizer& tokenizer);

/// Returns what an answer in a format may be: reasoning, free text, and calls as
/// ToolCallOptions::choice says, each of one of the functions with arguments that its schema
/// accepts. ChatOutputParser reads every such answer, and finds each call in it. Throws
/// kUnsupported for a format whose calls cannot be constrained (the message names those whose can),
/// kInvalidArgument for a choice that names no function of these.
///
///     const std::string format = find_tool_call_format(chat, tokenizer);
///     const ToolCallTags tags = tool_call_tags(format, tools, tokenizer, {.prompt = prompt});
///     const Grammar grammar = Grammar::tags(model.token_table().with(tags.marks), tags.json);
VITRINE_API ToolCallTags tool_call_tags(std::string_view format, const ChatTools& tools,
                                        const Tokenizer& tokenizer,
                                        const ToolCallOptions& options = {});

/// Returns what ChatTemplate::render does, with the arguments of calls that messages have
/// (`fields_json`, "tool_calls") as templates want them: an object also where they are the text of
/// one, as OpenAI writes them, unless the template fails on objects. Throws what
/// ChatTemplate::render throws.
VITRINE_API std::string render_with_calls(const ChatTemplate& chat,
                                          std::span<const ChatMessage> messages,
                                          const ChatOptions& options = {});

/// Returns false where the template's text is the same without ChatOptions::tools_json, so that the
/// model is not told of the functions. Throws what ChatTemplate::render throws.
VITRINE_API bool writes_tools(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                              const ChatOptions& options);

}  // namespace vitrine
