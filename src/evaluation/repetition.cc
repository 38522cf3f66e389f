// SPDX-License-Identifier: Apache-2.0
#include "evaluation/repetition.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/utf8.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kLeastRepeats = 4;
constexpr size_t kLeastCharacters = 64;
constexpr size_t kMostCharacters = 8192;

bool is_letter_or_digit(char32_t character) {
  return (character >= U'0' && character <= U'9') || (character >= U'a' && character <= U'z') ||
         (character >= U'A' && character <= U'Z') || (character >= 0x80 && character != 0xFFFD);
}

/// The last characters, the last first.
std::vector<char32_t> backwards(std::string_view text) {
  std::vector<char32_t> characters;
  for (size_t at = 0; at < text.size();) characters.push_back(next_code_point(text, at));
  std::ranges::reverse(characters);
  characters.resize(std::min(characters.size(), kMostCharacters));
  return characters;
}

/// Whether characters begin with a repetition.
bool begins_with_repetition(std::span<const char32_t> characters) {
  // Borders by Knuth, Morris and Pratt: the first n characters have the least period n - border.
  std::vector<size_t> borders(characters.size() + 1, 0);
  for (size_t i = 1, border = 0; i < characters.size(); ++i) {
    while (border > 0 && characters[i] != characters[border]) border = borders[border];
    if (characters[i] == characters[border]) ++border;
    borders[i + 1] = border;
    const size_t count = i + 1;
    const size_t period = count - border;
    if (count < kLeastCharacters || count < kLeastRepeats * period) continue;
    if (std::ranges::any_of(characters.first(period), is_letter_or_digit)) return true;
  }
  return false;
}

}  // namespace

bool ends_in_repetition(std::string_view text) {
  const std::vector<char32_t> characters = backwards(text);
  const auto is_space = [](char32_t character) {
    return character == U' ' || character == U'\n' || character == U'\t' || character == U'\r';
  };
  const auto start = std::ranges::find_if_not(characters, is_space);
  const std::span<const char32_t> all(characters);
  return begins_with_repetition(all) ||
         begins_with_repetition(all.subspan(static_cast<size_t>(start - characters.begin())));
}

}  // namespace vitrine::evaluation
