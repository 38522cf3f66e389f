// SPDX-License-Identifier: Apache-2.0
#include "text.h"

#include <algorithm>

#include "characters.h"
#include "core/utf8.h"

namespace vitrine::chat {

namespace {

bool is_line_break(char32_t c) {
  return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

bool is_boundary(std::string_view text, size_t at) {
  return at == text.size() || !is_continuation(text[at]);
}

size_t previous_start(std::string_view text, size_t at) {
  do --at;
  while (at > 0 && !is_boundary(text, at));
  return at;
}

/// Calls `found` with each place where `from` stands, from the left, at most `max_count` times. An
/// empty `from` stands before every character and at the end.
template <typename Found>
void for_each_match(std::string_view text, std::string_view from, int64_t max_count,
                    const Found& found) {
  int64_t count = 0;
  for (size_t at = 0; at <= text.size() && (max_count < 0 || count < max_count); ++count) {
    if (!from.empty()) {
      at = text.find(from, at);
      if (at == text.npos) return;
    } else {
      while (!is_boundary(text, at)) ++at;
    }
    found(at);
    at += std::max<size_t>(from.size(), 1);
  }
}

}  // namespace

size_t count_code_points(std::string_view text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char c) { return !is_continuation(c); }));
}

size_t byte_offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size(); ++at) {
    if (is_boundary(text, at) && index-- == 0) break;
  }
  return at;
}

std::u32string decode_utf8(std::string_view text) {
  std::u32string result;
  for (size_t at = 0; at < text.size();) result += next_code_point(text, at);
  return result;
}

std::string encode_utf8(std::u32string_view text) {
  std::string result;
  for (const char32_t code_point : text) append_utf8(code_point, result);
  return result;
}

std::string valid_utf8(std::string_view text) {
  std::string result;
  append_lossy(text, true, result);
  return result;
}

std::string_view strip(std::string_view text, bool left, bool right,
                       const std::string_view* characters) {
  const std::u32string set = characters == nullptr ? std::u32string() : decode_utf8(*characters);
  const auto matches = [&](size_t at) {
    const char32_t c = next_code_point(text, at);
    return characters == nullptr ? is_space(c) : set.find(c) != set.npos;
  };
  while (right && !text.empty()) {
    const size_t last = previous_start(text, text.size());
    if (!matches(last)) break;
    text = text.substr(0, last);
  }
  while (left && !text.empty() && matches(0)) {
    size_t next = 0;
    next_code_point(text, next);
    text.remove_prefix(next);
  }
  return text;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at;
    const char32_t c = next_code_point(text, at);
    if (!is_line_break(c)) continue;
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : end) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator,
                                    int64_t max_splits, bool from_right) {
  std::vector<std::string_view> parts;
  const auto may_split = [&] {
    return max_splits < 0 || static_cast<int64_t>(parts.size()) < max_splits;
  };
  if (separator.empty()) {  // runs of whitespace; none at the ends, however many splits are left
    text = from_right ? strip(text, false, true) : strip(text, true, false);
    while (!text.empty() && may_split()) {
      if (from_right) {
        size_t begin = text.size();
        while (begin > 0) {
          const size_t last = previous_start(text, begin);
          size_t next = last;
          if (is_space(next_code_point(text, next))) break;
          begin = last;
        }
        parts.push_back(text.substr(begin));
        text = strip(text.substr(0, begin), false, true);
      } else {
        size_t end = 0;
        while (end < text.size()) {
          size_t next = end;
          if (is_space(next_code_point(text, next))) break;
          end = next;
        }
        parts.push_back(text.substr(0, end));
        text = strip(text.substr(end), true, false);
      }
    }
    if (!text.empty()) parts.push_back(from_right ? strip(text, false, true) : text);
  } else {
    while (may_split()) {
      const size_t at = from_right ? text.rfind(separator) : text.find(separator);
      if (at == text.npos) break;
      const std::string_view before = text.substr(0, at),
                             after = text.substr(at + separator.size());
      parts.push_back(from_right ? after : before);
      text = from_right ? before : after;
    }
    parts.push_back(text);
  }
  if (from_right) std::ranges::reverse(parts);
  return parts;
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to,
                        int64_t max_count) {
  std::string result;
  size_t copied = 0;
  for_each_match(text, from, max_count, [&](size_t at) {
    result += text.substr(copied, at - copied);
    result += to;
    copied = at + from.size();
  });
  result += text.substr(copied);
  return result;
}

size_t replaced_size(std::string_view text, std::string_view from, std::string_view to,
                     int64_t max_count) {
  size_t count = 0;
  for_each_match(text, from, max_count, [&](size_t) { ++count; });
  return text.size() - count * from.size() + count * to.size();
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&#34;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

}  // namespace vitrine::chat
