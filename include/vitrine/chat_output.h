// SPDX-License-Identifier: Apache-2.0
// The room `chat`: what a chat model wrote, in parts: content, reasoning, calls of tools.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/chat.h"
#include "vitrine/core.h"
#include "vitrine/tokenizer.h"

namespace vitrine {

/// A call of a tool that an answer asks for.
struct ToolCall {
  std::string id;    ///< as the model wrote it; empty where its format has none
  std::string name;  ///< of the function, without a namespace ("functions.")
  /// What the model wrote: JSON, an object as a rule. Formats without JSON are written as an
  /// object. It is not checked against the function's schema.
  std::string arguments;
};

/// An answer in parts. Line ends and blanks around the marks between parts are left out.
struct ChatAnswer {
  std::string content;               ///< what is said to the user
  std::string reasoning;             ///< what the model thought before
  std::vector<ToolCall> tool_calls;  ///< in their order

  /// Returns the answer as a message of a conversation, to go on with (ChatTemplate::render): a
  /// template drops or keeps the reasoning as its model wants. `fields_json` has
  /// "reasoning_content", "reasoning" and "thinking" (one text, under the names that templates use)
  /// where there is reasoning, and "tool_calls" where there are some, with arguments as objects.
  VITRINE_API ChatMessage message() const;
  /// Returns that message as one JSON object, with "role" and "content".
  VITRINE_API std::string message_json() const;
};

/// What a delta adds to.
enum class ChatPart : uint8_t { kContent, kReasoning, kToolCall, kToolArguments };

/// What became certain of an answer with a piece of its text.
struct ChatDelta {
  ChatPart part = ChatPart::kContent;  ///< of the answer
  std::string text;  ///< text to append; with kToolCall, which begins a call, the function's name
  int call = -1;     ///< the place in ChatAnswer::tool_calls, with kToolCall and kToolArguments
  std::string id;    ///< ToolCall::id, with kToolCall
};

/// Names of the formats in which chat models write reasoning and calls, in alphabetical order:
/// "deepseek" (R1, V3, V3.1), "dsml" (DeepSeek V3.2, V4), "gemma4", "glm", "harmony" (gpt-oss),
/// "hermes" (JSON between tags: Qwen3), "kimi-k2", "lfm2", "minimax-m2", "mistral",
/// "plain" (all is content), "qwen3-coder" (functions as XML: Qwen3.5 too) and "think" (reasoning
/// alone).
VITRINE_API std::vector<std::string> chat_output_formats();

/// The format of a model's answers: the one whose marks its template writes, else the one whose
/// marks its vocabulary has as tokens, else "plain".
VITRINE_API std::string find_chat_output_format(const ChatTemplate& chat,
                                                const Tokenizer& tokenizer);
/// Finds the format by the template's text alone.
VITRINE_API std::string find_chat_output_format(std::string_view template_source);

/// What a parser is told about an answer.
struct ChatOutputOptions {
  /// The prompt that the answer continues: where it ends with an opened part (`<think>`), the
  /// answer begins within that.
  std::string_view prompt = {};
  /// The tools of the conversation, a JSON array as templates get it. Formats that write arguments
  /// as bare text need it to tell the text "5" from the number; without it, bare text that reads as
  /// JSON of another kind is taken for that.
  std::string_view tools_json = {};
};

/// Takes an answer apart as it is made.
///
///     ChatOutputParser parser(find_chat_output_format(chat, tokenizer), {.prompt = prompt});
///     for (…) for (const ChatDelta& delta : parser.add(piece)) show(delta);
///     for (const ChatDelta& delta : parser.finish()) show(delta);
///     messages.push_back(parser.answer().message());
///
/// Pieces may be cut anywhere, within marks and characters too: the answer is the same. Special
/// tokens that are marks of the format (`is_mark`) belong into the text. The text is a model's and
/// never trusted: what is no whole call of the format (never closed, no JSON) is content as it
/// stands, so that no word of it is lost; add() and finish() throw nothing but std::bad_alloc. Not
/// thread-safe; two parsers share nothing.
class VITRINE_API ChatOutputParser {
 public:
  /// Throws kInvalidArgument for an unknown format (the message names the known ones) and for
  /// tools that are no JSON array.
  explicit ChatOutputParser(std::string_view format, const ChatOutputOptions& options = {});
  ChatOutputParser(ChatOutputParser&&) noexcept;
  ChatOutputParser& operator=(ChatOutputParser&&) noexcept;
  ~ChatOutputParser();

  /// Adds a piece of the text and returns what became certain with it.
  std::vector<ChatDelta> add(std::string_view piece);
  /// Ends the text and returns what was held back. Nothing may be added afterwards.
  std::vector<ChatDelta> finish();
  /// Returns what the deltas so far add up to.
  const ChatAnswer& answer() const;
  /// Returns the format's name.
  std::string_view format() const;
  /// Returns true where a special token of this text means something in the format, so that its
  /// text has to be added; others are left out, as decoding leaves them out.
  bool is_mark(std::string_view token) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vitrine
