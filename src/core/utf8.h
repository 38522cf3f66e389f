// SPDX-License-Identifier: Apache-2.0
// UTF-8 (Unicode's table 3-7): the one place that decodes and encodes it. What to do with invalid
// bytes is up to the caller, who learns where they stand and how many belong together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vitrine {

inline constexpr std::string_view kReplacementText = "\xEF\xBF\xBD";  ///< U+FFFD in UTF-8

/// What stands at one place of a text.
struct Utf8Character {
  char32_t code_point;  ///< U+FFFD where the bytes are not valid
  /// Bytes of the character. Of invalid ones: how many could have begun a character together, at
  /// least 1. They are what Python's `errors="replace"` replaces by one U+FFFD.
  size_t size;
  bool is_valid;
  bool is_cut;  ///< invalid only because the text ends here: more bytes could complete it
};

/// Reads the character at `at`, which must be less than `text.size()`.
inline Utf8Character read_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  constexpr char32_t kReplacement = 0xFFFD;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1, true, false};
  if (lead < 0xC2 || lead > 0xF4) return {kReplacement, 1, false, false};
  const size_t size = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte's range excludes overlong forms, surrogates and what is above U+10FFFF.
  uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  char32_t code_point = lead & (0x7F >> size);
  for (size_t i = 1; i < size; ++i) {
    if (at + i == text.size()) return {kReplacement, i, false, true};
    if (byte(i) < low || byte(i) > high) return {kReplacement, i, false, false};
    code_point = code_point << 6 | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {code_point, size, true, false};
}

/// Returns the code point at `at` and moves `at` behind it.
inline char32_t next_code_point(std::string_view text, size_t& at) {
  const Utf8Character character = read_utf8(text, at);
  at += character.size;
  return character.code_point;
}

/// Whether a byte of valid UTF-8 continues a character that an earlier byte began.
inline bool is_continuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

bool is_utf8(std::string_view text);

/// Writes a code point (at most U+10FFFF) as UTF-8 and returns the number of bytes.
int encode_utf8(char32_t code_point, uint8_t out[4]);
/// Appends the same to a text.
void append_utf8(char32_t code_point, std::string& out);

/// Appends `bytes` to `out`, each invalid part as one U+FFFD, as Python's `errors="replace"` and
/// Rust's `from_utf8_lossy` do. Unless `is_final`, an unfinished character at the end is left
/// alone. Returns the number of bytes consumed.
size_t append_lossy(std::string_view bytes, bool is_final, std::string& out);

}  // namespace vitrine
