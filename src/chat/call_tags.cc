// SPDX-License-Identifier: Apache-2.0
#include "call_tags.h"

namespace vitrine::chat {

namespace {

std::string list_of(const char* type, const char* key, const std::vector<TagFormat>& parts) {
  std::string text;
  for (const TagFormat& part : parts) text += (text.empty() ? "" : ", ") + part;
  return std::string("{\"type\": \"") + type + "\", \"" + key + "\": [" + text + "]}";
}

std::string around(const char* type, const char* key, const std::string& json) {
  return std::string("{\"type\": \"") + type + "\", \"" + key + "\": " + json + "}";
}

/// ", "excludes": […]", or nothing.
std::string excludes_text(const Texts& excludes) {
  std::string text;
  for (const std::string_view one : excludes) text += (text.empty() ? "" : ", ") + json_text(one);
  return text.empty() ? text : ", \"excludes\": [" + text + "]";
}

}  // namespace

TagFormat tag_literal(std::string_view text) {
  return around("const_string", "value", json_text(text));
}
TagFormat tag_text(const Texts& excludes) {
  return "{\"type\": \"any_text\"" + excludes_text(excludes) + "}";
}
TagFormat tag_regex(std::string_view pattern) {
  return around("regex", "pattern", json_text(pattern));
}
TagFormat tag_arguments(const ToolFunction& function, const Texts& excludes) {
  return "{\"type\": \"json_schema\", \"json_schema\": " + function.parameters +
         ", \"place\": " + json_text("the parameters of '" + function.name + "'") +
         excludes_text(excludes) + "}";
}
TagFormat tag_sequence(const std::vector<TagFormat>& parts) {
  return parts.size() == 1 ? parts[0] : list_of("sequence", "elements", parts);
}
TagFormat tag_choice(const std::vector<TagFormat>& parts) {
  return parts.size() == 1 ? parts[0] : list_of("or", "elements", parts);
}
TagFormat tag_optional(const TagFormat& part) { return around("optional", "content", part); }
TagFormat tag_star(const TagFormat& part) { return around("star", "content", part); }

namespace {

/// Calls behind what `lead` reads, which is made one part with the beginning of the first: a text
/// up to there is read as one, not as one that may end at each byte.
TagFormat calls_behind(std::vector<TagFormat> lead, const TaggedCalls& calls,
                       const CallRequest& request) {
  std::vector<TagFormat> functions;
  for (const ToolFunction& function : request.functions) {
    functions.push_back(
        tag_sequence({calls.head(function.name), tag_arguments(function, calls.excludes)}));
  }
  // What all have in common stands once, so that there is one reading of it.
  TagFormat call = tag_choice(functions);
  if (!calls.tail.empty()) call = tag_sequence({call, calls.tail});
  lead.push_back(tag_literal(std::string(calls.open) + std::string(calls.before)));
  std::vector<TagFormat> parts = {tag_sequence(lead), call};
  if (request.parallel) {
    const std::string between =
        std::string(calls.after) + std::string(calls.separator) + std::string(calls.before);
    parts.push_back(tag_star(tag_sequence({tag_literal(between), call})));
  }
  parts.push_back(tag_literal(std::string(calls.after) + std::string(calls.close)));
  // A model may end behind what would lead to another call.
  if (calls.separator == "\n") parts.push_back(tag_regex("\\n?"));
  return tag_sequence(parts);
}

}  // namespace

TagFormat tagged_call_tags(const TaggedCalls& calls, const CallRequest& request) {
  const MarkPair& think = calls.reasoning;
  Texts ends_of_thoughts = {think.close};
  if (calls.calls_end_reasoning) {
    ends_of_thoughts.insert(ends_of_thoughts.end(), calls.marks.begin(), calls.marks.end());
  }
  const TagFormat thoughts = tag_text(ends_of_thoughts);
  const TagFormat rest_of_thoughts = tag_sequence({thoughts, tag_literal(think.close)});
  const TagFormat reasoning = tag_sequence({tag_literal(think.open), rest_of_thoughts});
  const std::string_view prompt = trim_space(request.prompt);
  const bool is_begun = prompt.ends_with(think.open);
  std::vector<TagFormat> lead;
  if (is_begun) lead.push_back(rest_of_thoughts);

  if (request.must_call) {
    const TagFormat gap = tag_regex("\\n{0,2}");
    const bool may_reason = request.template_source.find(think.open) != std::string_view::npos &&
                            !prompt.ends_with(think.close);
    if (is_begun) {
      lead.push_back(gap);
    } else if (may_reason) {
      lead.push_back(tag_optional(tag_sequence({reasoning, gap})));
    }
    return calls_behind(lead, calls, request);
  }
  Texts marks = calls.marks;
  marks.push_back(think.open);
  lead.push_back(tag_text(marks));
  lead.push_back(tag_star(tag_sequence({reasoning, tag_text(marks)})));
  std::vector<TagFormat> free = lead;
  free.push_back(tag_optional(tag_sequence({tag_literal(think.open), thoughts})));
  std::vector<TagFormat> answers = {tag_sequence(free)};
  if (is_begun) answers.push_back(thoughts);
  if (!request.functions.empty()) answers.push_back(calls_behind(lead, calls, request));
  return tag_choice(answers);
}

}  // namespace vitrine::chat
