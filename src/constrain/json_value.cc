// SPDX-License-Identifier: Apache-2.0
#include "json_value.h"

#include <string>

#include "char_ranges.h"
#include "core/utf8.h"
#include "string_escape.h"
#include "vitrine/core.h"

namespace vitrine::constrain {

namespace {

constexpr int kMaxValueDepth = 500;

class ValueParser {
 public:
  explicit ValueParser(std::string_view text) : text_(text) {}

  JsonValue parse() {
    skip_space();
    JsonValue out = value(0);
    skip_space();
    if (at_ != text_.size()) fail("expected the end");
    return out;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorKind::kBadFile,
                "the schema is no JSON: byte " + std::to_string(at_) + ": " + what);
  }
  int peek() const { return at_ < text_.size() ? static_cast<uint8_t>(text_[at_]) : -1; }
  void skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r')) {
      ++at_;
    }
  }
  void word(std::string_view expected) {
    if (text_.substr(at_, expected.size()) != expected) fail("expected a value");
    at_ += expected.size();
  }

  JsonValue value(int depth) {
    if (depth > kMaxValueDepth) fail("nested deeper than 500");
    JsonValue out;
    switch (peek()) {
      case 'n': word("null"); break;
      case 'f':
        word("false");
        out.type = JsonValue::kFalse;
        break;
      case 't':
        word("true");
        out.type = JsonValue::kTrue;
        break;
      case '"':
        out.type = JsonValue::kString;
        out.text = string();
        break;
      case '[':
        out.type = JsonValue::kArray;
        ++at_;
        skip_space();
        if (peek() == ']') {
          ++at_;
          break;
        }
        while (true) {
          skip_space();
          out.items.push_back(value(depth + 1));
          skip_space();
          if (peek() == ',') {
            ++at_;
          } else if (peek() == ']') {
            ++at_;
            break;
          } else {
            fail("expected ',' or ']'");
          }
        }
        break;
      case '{': object(out, depth); break;
      default: number(out);
    }
    return out;
  }

  void object(JsonValue& out, int depth) {
    out.type = JsonValue::kObject;
    ++at_;
    skip_space();
    if (peek() == '}') {
      ++at_;
      return;
    }
    while (true) {
      skip_space();
      if (peek() != '"') fail("expected a key");
      out.keys.push_back(string());
      skip_space();
      if (peek() != ':') fail("expected ':'");
      ++at_;
      skip_space();
      out.items.push_back(value(depth + 1));
      skip_space();
      if (peek() == ',') {
        ++at_;
      } else if (peek() == '}') {
        ++at_;
        return;
      } else {
        fail("expected ',' or '}'");
      }
    }
  }

  void number(JsonValue& out) {
    const size_t start = at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      if (at_ == first) fail("expected a value");
    };
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (peek() == '.') {
      ++at_;
      digits();
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    out.type = JsonValue::kNumber;
    out.text = text_.substr(start, at_ - start);
  }

  std::string string() {
    ++at_;
    // Mostly there is no escape: copy up to the quote at once.
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<uint8_t>(text_[at_]) >= 0x20) {
      ++at_;
    }
    std::string out(text_.substr(start, at_ - start));
    EscapeState state;
    while (true) {
      if (at_ >= text_.size()) fail("a string that does not end");
      const EscapeStep step = escape_step(state, static_cast<uint8_t>(text_[at_]));
      if (step.kind == EscapeStep::kDead)
        fail("a control character, or no valid escape, in a string");
      ++at_;
      state = step.next;
      if (step.kind == EscapeStep::kClose) break;
      if (step.kind == EscapeStep::kRawByte) out += static_cast<char>(step.code_point);
      if (step.kind == EscapeStep::kCodePoint) {
        uint8_t bytes[4];
        const int length = encode_utf8(step.code_point, bytes);
        out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(length));
      }
    }
    for (char byte : out) {
      if ((byte & 0x80) == 0) continue;
      if (!is_utf8(out)) fail("a string that is not UTF-8");
      break;
    }
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (size_t i = keys.size(); i-- > 0;) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

JsonValue parse_json(std::string_view text) { return ValueParser(text).parse(); }

std::string write_json(const JsonValue& value) {
  switch (value.type) {
    case JsonValue::kNull: return "null";
    case JsonValue::kFalse: return "false";
    case JsonValue::kTrue: return "true";
    case JsonValue::kNumber: return value.text;
    case JsonValue::kString: return json_quote(value.text);
    default: break;
  }
  std::string out = value.is_object() ? "{" : "[";
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out += ',';
    if (value.is_object()) out += json_quote(value.keys[i]) + ":";
    out += write_json(value.items[i]);
  }
  return out + (value.is_object() ? "}" : "]");
}

std::string json_quote(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (char byte : text) {
    if (byte == '"' || byte == '\\') {
      out += '\\';
      out += byte;
    } else if (static_cast<uint8_t>(byte) < 0x20) {
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += byte;
    }
  }
  return out + "\"";
}

std::string pointer_token(std::string_view key) {
  std::string out = "/";
  for (const char byte : key) {
    if (byte == '~') {
      out += "~0";
    } else if (byte == '/') {
      out += "~1";
    } else {
      out += byte;
    }
  }
  return out;
}

}  // namespace vitrine::constrain
