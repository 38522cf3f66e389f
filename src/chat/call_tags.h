// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an answer with calls is, as structural tags (Grammar::tags reads them).
// A format of answers puts its own together from these parts.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tagged_output.h"
#include "vitrine/chat_tools.h"

namespace vitrine::chat {

/// What an answer is asked for.
struct CallRequest {
  std::vector<ToolFunction> functions;  ///< that it may call; none where it may call none
  bool must_call = false;               ///< it has a call at least
  bool parallel = true;                 ///< it may have several
  std::string_view prompt = {};         ///< that it continues
  std::string_view template_source = {};
};

/// A format's JSON text. Each of these returns that of one.
using TagFormat = std::string;
using Texts = std::vector<std::string_view>;
/// This text.
TagFormat tag_literal(std::string_view text);
/// Any text that holds none of these.
TagFormat tag_text(const Texts& excludes);
/// A text that the regular expression matches whole.
TagFormat tag_regex(std::string_view pattern);
/// A function's arguments, in which no string and no key holds one of these.
TagFormat tag_arguments(const ToolFunction& function, const Texts& excludes);
/// One behind the other.
TagFormat tag_sequence(const std::vector<TagFormat>& parts);
/// One of them.
TagFormat tag_choice(const std::vector<TagFormat>& parts);
TagFormat tag_optional(const TagFormat& part);
/// Any number of them.
TagFormat tag_star(const TagFormat& part);

/// Calls between marks in a text that is content otherwise, as TaggedSyntax reads them.
struct TaggedCalls {
  MarkPair reasoning = {};
  std::vector<std::string_view> marks;  ///< that free text must not hold: they begin calls
  std::string_view open, close;         ///< around all calls: marks of a section, or nothing
  std::string_view before, after;       ///< around each
  std::string_view separator;           ///< between two
  /// What stands between `before` and the arguments.
  TagFormat (*head)(std::string_view function) = nullptr;
  TagFormat tail = {};               ///< what stands between the arguments and `after`, if anything
  Texts excludes = {};               ///< that no text of the arguments may hold
  bool calls_end_reasoning = false;  ///< as TaggedSyntax has it
};
/// Reasoning, content, and behind it calls: free where they may come, forced where they must. An
/// answer without a call may end within its reasoning.
TagFormat tagged_call_tags(const TaggedCalls& calls, const CallRequest& request);

}  // namespace vitrine::chat
