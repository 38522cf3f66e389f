// SPDX-License-Identifier: Apache-2.0
#include "evaluation/scorers/reading.h"

#include <utf8proc.h>

#include <algorithm>

#include "core/json_text.h"
#include "core/utf8.h"

namespace vitrine::evaluation {

namespace {

constexpr std::string_view kSpaces = " \t\r\n\f\v";
constexpr std::string_view kFence = "```";
constexpr size_t kMostJsonBytes = size_t{1} << 20;
constexpr size_t kMostJsonValues = 100'000;
constexpr size_t kMostStarts = 64;  // places of an answer where JSON may begin

char lower(char byte) {
  return byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
}

/// The end of the object or list that begins at `start`, behind its last bracket; npos where none
/// closes it.
size_t json_end(std::string_view text, size_t start) {
  size_t depth = 0;
  bool is_in_text = false;
  for (size_t i = start; i < text.size(); ++i) {
    const char byte = text[i];
    if (is_in_text) {
      if (byte == '\\') ++i;
      if (byte == '"') is_in_text = false;
    } else if (byte == '"') {
      is_in_text = true;
    } else if (byte == '{' || byte == '[') {
      ++depth;
    } else if ((byte == '}' || byte == ']') && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

}  // namespace

std::string answer_text(const ScoredAnswer& answer) {
  const ChatAnswer& parts = answer.answer.parts;
  const bool has_parts =
      !parts.content.empty() || !parts.reasoning.empty() || !parts.tool_calls.empty();
  return has_parts ? parts.content : answer.answer.text;
}

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpaces);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpaces) - begin + 1);
}

std::string fold_case(std::string_view text) {
  std::string folded;
  folded.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = read_utf8(text, at);
    at += character.size;
    append_utf8(static_cast<char32_t>(
                    utf8proc_tolower(static_cast<utf8proc_int32_t>(character.code_point))),
                folded);
  }
  return folded;
}

std::optional<std::string_view> after_marker(std::string_view text, std::string_view marker) {
  const auto found = std::ranges::find_end(text, marker, {}, lower, lower);
  if (marker.empty() || found.empty()) return std::nullopt;
  return text.substr(static_cast<size_t>(found.end() - text.begin()));
}

std::string_view first_line(std::string_view text) {
  text = trim(text);
  return trim(text.substr(0, text.find('\n')));
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  bool is_within = false;
  for (const char byte : fold_case(text)) {
    const bool is_part = (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') ||
                         static_cast<uint8_t>(byte) >= 0x80;
    if (is_part && !is_within) words.emplace_back();
    if (is_part) words.back() += byte;
    is_within = is_part;
  }
  return words;
}

std::optional<std::string_view> fenced_block(std::string_view text) {
  const size_t open = text.find(kFence);
  if (open == std::string_view::npos) return std::nullopt;
  const size_t line = text.find('\n', open);
  if (line == std::string_view::npos) return std::nullopt;
  const size_t close = text.find(kFence, line + 1);
  return text.substr(line + 1, close == std::string_view::npos ? close : close - line - 1);
}

std::optional<Json> parse_answer_json(std::string_view text) {
  if (text.size() > kMostJsonBytes || !is_utf8(text)) return std::nullopt;
  try {
    check_json(text, "answer", kMostJsonValues, kMostJsonValues);
  } catch (const Error&) {
    return std::nullopt;
  }
  return Json::parse(text.begin(), text.end());
}

std::optional<FoundJson> find_json(std::string_view text) {
  text = trim(text);
  if (std::optional<Json> whole = parse_answer_json(text)) {
    return FoundJson{*std::move(whole), std::string(text), true};
  }
  if (const std::optional<std::string_view> block = fenced_block(text)) {
    const std::string_view inner = trim(*block);
    if (std::optional<Json> value = parse_answer_json(inner)) {
      return FoundJson{*std::move(value), std::string(inner), false};
    }
  }
  size_t start = text.find_first_of("{[");
  for (size_t tried = 0; tried < kMostStarts && start != std::string_view::npos; ++tried) {
    const size_t end = json_end(text, start);
    if (end != std::string_view::npos) {
      const std::string_view piece = text.substr(start, end - start);
      if (std::optional<Json> value = parse_answer_json(piece)) {
        return FoundJson{*std::move(value), std::string(piece), false};
      }
    }
    start = text.find_first_of("{[", start + 1);
  }
  return std::nullopt;
}

std::vector<Json> find_all_json(std::string_view text) {
  std::vector<Json> values;
  size_t start = text.find_first_of("{[");
  for (size_t tried = 0; tried < kMostStarts && start != std::string_view::npos; ++tried) {
    const size_t end = json_end(text, start);
    std::optional<Json> value;
    if (end != std::string_view::npos) value = parse_answer_json(text.substr(start, end - start));
    start = text.find_first_of("{[", value ? end : start + 1);
    if (value) values.push_back(*std::move(value));
  }
  return values;
}

std::string short_text(std::string_view text) {
  constexpr size_t kMostBytes = 400;
  if (text.size() <= kMostBytes) return std::string(text);
  size_t end = kMostBytes;
  while (end > 0 && is_continuation(text[end])) --end;
  return std::string(text.substr(0, end)) + "…";
}

}  // namespace vitrine::evaluation
