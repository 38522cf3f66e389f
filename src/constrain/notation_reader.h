// SPDX-License-Identifier: Apache-2.0
// What readers of grammar notations share: a text, a place in it, and how mistakes are told.
#pragma once

#include <string>
#include <string_view>

#include "grammar_rules.h"

namespace vitrine::constrain {

class NotationReader {
 protected:
  /// `has_slash_comments`: a comment begins with // too, not with # alone.
  NotationReader(std::string_view text, bool has_slash_comments)
      : text_(text), has_slash_comments_(has_slash_comments) {}

  [[noreturn]] void refuse(size_t at, const std::string& what,
                           ErrorKind kind = ErrorKind::kInvalidArgument) const {
    throw Error(kind, place_in(text_, at) + what);
  }
  bool is_at(char character) const { return at_ < text_.size() && text_[at_] == character; }
  bool is_at(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!is_at(what)) return false;
    at_ += what.size();
    return true;
  }
  static bool is_word(char character) {
    return (character >= 'a' && character <= 'z') || (character >= 'A' && character <= 'Z') ||
           (character >= '0' && character <= '9') || character == '-' || character == '_';
  }

  void skip_space(bool newlines) {
    while (at_ < text_.size()) {
      const char character = text_[at_];
      if (character == '#' || (has_slash_comments_ && is_at("//"))) {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (character == ' ' || character == '\t' || character == '\r' ||
                 (newlines && character == '\n')) {
        ++at_;
      } else {
        return;
      }
    }
  }

  /// How often something is repeated.
  uint32_t parse_count() {
    const size_t from = at_;
    uint32_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      value = value * 10 + static_cast<uint32_t>(text_[at_] - '0');
      if (value > kMaxRepeat) refuse(from, "a repetition of more than 10000 times");
    }
    if (at_ == from) refuse(at_, "expected a number");
    return value;
  }

  /// What stands behind a backslash: a line feed and its like, a code in hexadecimal digits, or one
  /// of `plain`, which stand for themselves.
  uint32_t parse_escape(std::string_view plain) {
    const size_t from = at_ - 1;
    const char kind = at_ < text_.size() ? text_[at_++] : '\0';
    size_t digits = 0;
    switch (kind) {
      case 'n': return '\n';
      case 't': return '\t';
      case 'r': return '\r';
      case 'x': digits = 2; break;
      case 'u': digits = 4; break;
      case 'U': digits = 8; break;
      default:
        if (plain.find(kind) == plain.npos) refuse(from, "an unknown escape");
        return static_cast<uint32_t>(kind);
    }
    std::string why;
    const uint32_t code = read_hex_escape(text_, at_, digits, why);
    if (!why.empty()) refuse(from, why);
    return code;
  }

  std::string_view text_;
  size_t at_ = 0;

 private:
  static constexpr uint32_t kMaxRepeat = 10000;
  bool has_slash_comments_;
};

}  // namespace vitrine::constrain
