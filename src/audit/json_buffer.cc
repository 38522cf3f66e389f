// SPDX-License-Identifier: Apache-2.0
#include "json_buffer.h"

#include <algorithm>
#include <cmath>

#include "core/utf8.h"

namespace vitrine::audit {

void JsonBuffer::grow(size_t bytes) {
  const size_t capacity = std::max(2 * capacity_, size_ + bytes);
  std::unique_ptr<char[]> data(new char[capacity]);
  std::memcpy(data.get(), data_.get(), size_);
  data_ = std::move(data);
  capacity_ = capacity;
}

void JsonBuffer::real(float value) {
  if (!std::isfinite(value)) {
    raw("null");
    return;
  }
  constexpr size_t kLongest = 64;  // a float's fixed or scientific shortest form has fewer than 20
  char* first = room(kLongest);
  // Readers parse a double and may round that to float32. Of all floats (every one was tried) this
  // alone would become its neighbour; a double's digits are exact.
  constexpr float kTwiceRounded = 0x1.5c87fap-84f;
  char* last = std::fabs(value) == kTwiceRounded
                   ? std::to_chars(first, first + kLongest, static_cast<double>(value)).ptr
                   : std::to_chars(first, first + kLongest, value).ptr;
  size_ = static_cast<size_t>(last - data_.get());
  // Nearly every value has a fraction; only the others are looked at again.
  if (value == std::trunc(value) &&
      std::none_of(first, last, [](char c) { return c == 'e' || c == '.'; })) {
    raw(".0");
  }
}

void JsonBuffer::real(double value) {
  if (!std::isfinite(value)) {
    raw("null");
    return;
  }
  constexpr size_t kLongest = 32;  // the shortest form that reads back has at most 24
  char* first = room(kLongest);
  char* last = std::to_chars(first, first + kLongest, value, std::chars_format::scientific).ptr;
  size_ = static_cast<size_t>(last - data_.get());
}

void JsonBuffer::string(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  raw('"');
  while (!text.empty()) {
    const char character = text.front();
    const Utf8Character next = read_utf8(text, 0);
    if (!next.is_valid) {
      raw(kReplacementText);
    } else if (character == '"' || character == '\\') {
      raw('\\');
      raw(character);
    } else if (character == '\n') {
      raw("\\n");
    } else if (character == '\t') {
      raw("\\t");
    } else if (character == '\r') {
      raw("\\r");
    } else if (static_cast<unsigned char>(character) < 0x20 || character == 0x7F) {
      raw("\\u00");
      raw(kHex[character >> 4]);
      raw(kHex[character & 15]);
    } else {
      raw(text.substr(0, next.size));
    }
    text.remove_prefix(next.size);
  }
  raw('"');
}

void JsonBuffer::number_or_string(std::string_view text) {
  double value = 0;
  const char* last = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), last, value);
  if (status != std::errc() || end != last || !std::isfinite(value)) {
    string(text);
    return;
  }
  number(value);
}

}  // namespace vitrine::audit
