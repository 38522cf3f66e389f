// SPDX-License-Identifier: Apache-2.0
// Private to the room: the formats in which models write reasoning and calls of tools. A format is
// one file with one registration.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/chat_output.h"

namespace vitrine::chat {

/// Puts an answer together and tells what is new. Whitespace on either side of a boundary is left
/// out, so some is held back until it is known what follows.
class OutputSink {
 public:
  explicit OutputSink(ChatAnswer& answer) : answer_(answer) {}

  void content(std::string_view text) { put(ChatPart::kContent, text); }
  void reasoning(std::string_view text) { put(ChatPart::kReasoning, text); }
  /// Begins a call, to which arguments() then adds.
  void begin_call(std::string_view id, std::string_view name);
  void arguments(std::string_view text) { put(ChatPart::kToolArguments, text); }
  /// A part ends here, or another begins.
  void boundary();
  /// Tells what is held back: the text is over.
  void finish();
  std::vector<ChatDelta> take_deltas() { return std::exchange(deltas_, {}); }

 private:
  void put(ChatPart part, std::string_view text);
  void append(ChatPart part, std::string_view text);
  std::string& text_of(ChatPart part);

  ChatAnswer& answer_;
  std::vector<ChatDelta> deltas_;
  std::string held_;  // whitespace at the end of the part
  ChatPart part_ = ChatPart::kContent;
  bool skips_space_ = false;  // behind a boundary
};

/// Reads an answer step by step.
class OutputReader {
 public:
  virtual ~OutputReader() = default;
  /// Takes what is certain from the beginning of `text` and returns how many bytes that is; 0: it
  /// needs more. It is called again with the rest until it returns 0, and what it decides must
  /// hold whatever follows. With `is_end` nothing follows and all is taken. `text` may be empty.
  virtual size_t read(std::string_view text, bool is_end, OutputSink& sink) = 0;
  /// Returns true where all that is there must be given, not only its first kilobytes.
  virtual bool wants_all() const { return false; }
};

/// The functions that a conversation may call: which of their arguments are texts.
class ToolTypes {
 public:
  /// Throws kInvalidArgument where the text is neither empty nor a JSON array.
  explicit ToolTypes(std::string_view tools_json);
  ~ToolTypes();
  /// An argument that stands as bare text, as JSON.
  std::string argument(std::string_view function, std::string_view name,
                       std::string_view text) const;

 private:
  struct Tables;
  std::unique_ptr<const Tables> tables_;
};

struct CallRequest;

struct OutputFormat {
  std::string_view name;
  /// The smaller counts where several fit.
  int rank = 0;
  /// A template or vocabulary that has all of these is of the format.
  std::vector<std::string_view> signs;
  /// Special tokens that belong into the text.
  std::vector<std::string_view> marks;
  /// A reader of the answer to a prompt. Both must stay.
  std::unique_ptr<OutputReader> (*make)(std::string_view prompt, const ToolTypes& tools) = nullptr;
  /// What an answer is that may or must call functions, as structural tags (call_tags.h): its
  /// reader finds every call in it. Null: calls cannot be constrained.
  std::string (*call_tags)(const CallRequest& request) = nullptr;
};

/// Makes a format known; false where its name is taken.
bool register_output_format(const OutputFormat& format);
/// Null where there is none.
const OutputFormat* find_output_format(std::string_view name);
/// In the order of their names.
std::vector<OutputFormat> output_formats();

#define VITRINE_REGISTER_OUTPUT_FORMAT(function) \
  const bool function##_is_registered = ::vitrine::chat::register_output_format(function())

/// The first of some marks in a text.
struct FoundMark {
  size_t at = std::string_view::npos;  ///< npos: there is none
  size_t index = 0;                    ///< of the mark
  /// How much of the text can't become a part of a mark, whatever follows.
  size_t certain = 0;
  bool is_found() const { return at != std::string_view::npos; }
};
FoundMark find_mark(std::string_view text, std::span<const std::string_view> marks);

/// Text without whitespace at its ends.
std::string_view trim_space(std::string_view text);
/// "…", bytes that are no UTF-8 as U+FFFD.
std::string json_text(std::string_view text);

}  // namespace vitrine::chat
