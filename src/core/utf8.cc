// SPDX-License-Identifier: Apache-2.0
#include "core/utf8.h"

namespace vitrine {

bool is_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = read_utf8(text, at);
    if (!character.is_valid) return false;
    at += character.size;
  }
  return true;
}

int encode_utf8(char32_t code_point, uint8_t out[4]) {
  if (code_point < 0x80) {
    out[0] = static_cast<uint8_t>(code_point);
    return 1;
  }
  const int size = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
  for (int i = size - 1; i > 0; --i) {
    out[i] = static_cast<uint8_t>(0x80 | (code_point & 0x3F));
    code_point >>= 6;
  }
  static constexpr uint8_t kLead[5] = {0, 0, 0xC0, 0xE0, 0xF0};
  out[0] = static_cast<uint8_t>(kLead[size] | code_point);
  return size;
}

void append_utf8(char32_t code_point, std::string& out) {
  uint8_t bytes[4];
  const int size = encode_utf8(code_point, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(size));
}

size_t append_lossy(std::string_view bytes, bool is_final, std::string& out) {
  size_t begin = 0;  // of what is valid and not appended yet
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Character character = read_utf8(bytes, at);
    if (!character.is_valid) {
      out.append(bytes, begin, at - begin);
      if (character.is_cut && !is_final) return at;
      out += kReplacementText;
      begin = at + character.size;
    }
    at += character.size;
  }
  out.append(bytes, begin);
  return bytes.size();
}

}  // namespace vitrine
