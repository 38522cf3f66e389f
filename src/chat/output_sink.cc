// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "output_format.h"

namespace vitrine::chat {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

bool is_of_a_call(ChatPart part) {
  return part == ChatPart::kToolCall || part == ChatPart::kToolArguments;
}

}  // namespace

std::string& OutputSink::text_of(ChatPart part) {
  switch (part) {
    case ChatPart::kReasoning: return answer_.reasoning;
    case ChatPart::kToolCall: return answer_.tool_calls.back().name;
    case ChatPart::kToolArguments: return answer_.tool_calls.back().arguments;
    case ChatPart::kContent: break;
  }
  return answer_.content;
}

void OutputSink::append(ChatPart part, std::string_view text) {
  text_of(part) += text;
  const int call = is_of_a_call(part) ? static_cast<int>(answer_.tool_calls.size()) - 1 : -1;
  const bool goes_on = part != ChatPart::kToolCall && !deltas_.empty() &&
                       deltas_.back().part == part && deltas_.back().call == call;
  if (!goes_on) deltas_.push_back({.part = part, .text = {}, .call = call, .id = {}});
  deltas_.back().text += text;
}

void OutputSink::put(ChatPart part, std::string_view text) {
  if (part != part_) boundary();
  part_ = part;
  if (skips_space_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    if (text.empty()) return;
    skips_space_ = false;
    // Two parts of a kind, between which something else or nothing but a mark stood.
    if (!is_of_a_call(part) && !text_of(part).empty()) append(part, "\n");
  }
  const size_t end = text.find_last_not_of(kSpace) + 1;
  if (end > 0) {
    if (!held_.empty()) append(part, std::exchange(held_, {}));
    append(part, text.substr(0, end));
  }
  held_ += text.substr(end);
}

void OutputSink::boundary() {
  held_.clear();
  skips_space_ = true;
}

void OutputSink::begin_call(std::string_view id, std::string_view name) {
  boundary();
  part_ = ChatPart::kToolArguments;
  answer_.tool_calls.push_back({.id = std::string(id), .name = {}, .arguments = {}});
  append(ChatPart::kToolCall, name);
  deltas_.back().id = id;
}

void OutputSink::finish() {
  if (!held_.empty() && !is_of_a_call(part_)) append(part_, held_);
  held_.clear();
}

FoundMark find_mark(std::string_view text, std::span<const std::string_view> marks) {
  FoundMark found;
  for (size_t index = 0; index < marks.size(); ++index) {
    const size_t at = text.find(marks[index]);
    if (at < found.at) found = {.at = at, .index = index, .certain = 0};
  }
  if (found.is_found()) {
    found.certain = found.at;
    return found;
  }
  size_t partial = 0;
  for (const std::string_view mark : marks) {
    for (size_t size = std::min(mark.size() - 1, text.size()); size > partial; --size) {
      if (text.ends_with(mark.substr(0, size))) partial = size;
    }
  }
  found.certain = text.size() - partial;
  return found;
}

std::string_view trim_space(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
  return text.substr(0, text.find_last_not_of(kSpace) + 1);
}

std::string json_text(std::string_view text) {
  using Json = nlohmann::json;
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace vitrine::chat
