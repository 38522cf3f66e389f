// SPDX-License-Identifier: Apache-2.0
#include "evaluation/repetition.h"

#include <algorithm>
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
  while (!characters.empty() && (characters.back() == U' ' || characters.back() == U'\n' ||
                                 characters.back() == U'\t' || characters.back() == U'\r')) {
    characters.pop_back();
  }
  std::ranges::reverse(characters);
  characters.resize(std::min(characters.size(), kMostCharacters));
  return characters;
}

}  // namespace

bool ends_in_repetition(std::string_view text) {
  const std::vector<char32_t> characters = backwards(text);
  // Borders by Knuth, Morris and Pratt: the first n characters have the least period n - border.
  std::vector<size_t> borders(characters.size() + 1, 0);
  for (size_t i = 1, border = 0; i < characters.size(); ++i) {
    while (border > 0 && characters[i] != characters[border]) border = borders[border];
    if (characters[i] == characters[border]) ++border;
    borders[i + 1] = border;
    const size_t count = i + 1;
    const size_t period = count - border;
    if (count < kLeastCharacters || count < kLeastRepeats * period) continue;
    if (std::any_of(characters.begin(), characters.begin() + static_cast<ptrdiff_t>(period),
                    is_letter_or_digit)) {
      return true;
    }
  }
  return false;
}

}  // namespace vitrine::evaluation
