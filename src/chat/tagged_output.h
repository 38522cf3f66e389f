// SPDX-License-Identifier: Apache-2.0
// Private to the room: formats whose reasoning and calls stand between marks in a text that is
// content otherwise. What is between the marks of a call, a format reads itself.
#pragma once

#include <functional>

#include "output_format.h"

namespace vitrine::chat {

/// A pair of marks around a part. A call without the second ends where the next begins.
struct MarkPair {
  std::string_view open, close;
};

enum class CallRead : uint8_t {
  kCalls,      ///< the text is calls, from its beginning to its end
  kNeedsMore,  ///< it may be the beginning of one
  kNoCall,     ///< whatever follows
};

struct TaggedSyntax {
  std::vector<MarkPair> reasoning;
  std::vector<std::string_view> sections;  ///< marks around several calls; they say nothing else
  std::vector<MarkPair> calls;
  /// Calls end reasoning that was not closed: their marks are special tokens, which stand for
  /// nothing else.
  bool calls_end_reasoning = false;
  /// Reads what stands between the marks of calls. Null: calls are read in parts, as below.
  CallRead (*read_calls)(std::string_view text, const ToolTypes& tools,
                         std::vector<ToolCall>& calls) = nullptr;
  /// A call is a head, this mark, and arguments, which are told as they come.
  std::string_view separator = {};
  /// Returns false where a head is of no call. With an empty name, read_calls gets the whole call.
  bool (*read_head)(std::string_view head, ToolCall& call) = nullptr;
  /// A call that begins with one of these has no head: read_calls gets all of it.
  std::string_view headless = {};
};

std::unique_ptr<OutputReader> make_tagged_reader(TaggedSyntax syntax, std::string_view prompt,
                                                 const ToolTypes& tools);

/// What stands in a JSON object or in a list of them: "name", and "arguments" or "parameters".
/// Others than "id" and "type" make it no call, so that nothing of it is lost.
CallRead read_json_calls(std::string_view text, const ToolTypes& tools,
                         std::vector<ToolCall>& calls);
/// The end of the JSON value that begins at `at`; npos where the text ends before. What lies
/// between is no JSON necessarily.
size_t find_json_end(std::string_view text, size_t at);
/// Whether a text is JSON.
bool is_json(std::string_view text);

/// Reads the text of a call from its beginning.
class CallText {
 public:
  explicit CallText(std::string_view text) : text_(text) {}

  bool at_end() const { return text_.empty(); }
  bool is_short() const { return is_short_; }
  void skip_space() { text_.remove_prefix(text_.size() - after_space().size()); }
  /// Takes a literal. Where the text ends within it, is_short().
  bool take(std::string_view literal);
  /// What stands before a literal, which is taken too.
  bool take_until(std::string_view literal, std::string_view& found);
  /// What stands before the first such literal behind which, after whitespace, one of `next` or the
  /// end stands. The literal is taken too, those are not.
  bool take_until(std::string_view literal, std::span<const std::string_view> next,
                  std::string_view& found);
  std::string_view rest() const { return text_; }
  void remove(size_t size) { text_.remove_prefix(size); }
  /// The text ends where more was wanted.
  void mark_short() { is_short_ = true; }
  /// For `take` and others that failed.
  CallRead failure() const { return is_short_ ? CallRead::kNeedsMore : CallRead::kNoCall; }

 private:
  std::string_view after_space() const;

  std::string_view text_;
  bool is_short_ = false;
};

/// An object of arguments, as JSON.
class ArgumentsWriter {
 public:
  void add(std::string_view name, std::string_view json) {
    text_ += text_.size() > 1 ? ", " : "";
    text_ += json_text(name) + ": " + std::string(json);
  }
  std::string take() { return std::move(text_) + "}"; }

 private:
  std::string text_ = "{";
};

}  // namespace vitrine::chat
