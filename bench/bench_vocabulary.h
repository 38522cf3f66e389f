// SPDX-License-Identifier: Apache-2.0
// A vocabulary like those of published models, made without one: words with and without a space
// before them, runs of spaces and new lines, what programs and JSON have between words, and
// characters of three bytes, whole and in part. The same for the same size everywhere.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "vitrine/constrain.h"

namespace vitrine::bench {

class VocabularyMaker {
 public:
  /// `lacks_bytes`: without the bytes that no tokenizer trained on text alone has a token for.
  VocabularyMaker(size_t size, bool lacks_bytes) : size_(size), lacks_bytes_(lacks_bytes) {}

  /// The last id ends a sequence.
  TokenTable make() {
    for (int byte = 0; byte < 256; ++byte) {
      const bool is_rare = (byte < 0x20 && byte != '\n' && byte != '\t' && byte != '\r') ||
                           byte == 0xC0 || byte == 0xC1 || byte == 0xF1 || byte >= 0xF5;
      if (!lacks_bytes_ || !is_rare) add(std::string(1, static_cast<char>(byte)));
    }
    for (const char blank : {' ', '\n', '\t'}) {
      for (size_t length = 2; length <= 60; ++length) add(std::string(length, blank));
    }
    while (tokens_.size() + 1 < size_) add(token());
    tokens_.emplace_back();
    const auto end = static_cast<int32_t>(tokens_.size()) - 1;
    return TokenTable::from_bytes(std::move(tokens_), {end});
  }

 private:
  void add(std::string token) {
    if (token.size() <= 64 && seen_.insert(token).second) tokens_.push_back(std::move(token));
  }
  /// Small numbers are likelier.
  size_t low(size_t below) { return rng_() % (rng_() % below + 1); }

  std::string token() {
    const uint64_t kind = rng_() % 1000;
    if (kind < 580) return " " + word();
    if (kind < 900) return word();
    if (kind < 930) return between();
    if (kind < 936) return quoted();
    if (kind < 939) return "\\" + word();
    if (kind < 945) return std::string(1 + low(40), ' ') + between();
    return wide();
  }
  /// Adds quotes as programs have them: behind something, before something, with a space before.
  std::string quoted() {
    std::string out = between() + '"' + between();
    if (rng_() % 3 == 0) out = between() + "\"";
    if (rng_() % 3 == 0) out = "\"" + between();
    return rng_() % 6 == 0 ? " " + out : out;
  }
  std::string word() {
    static constexpr std::array<const char*, 18> kStarts = {
        "", "s", "t", "c", "p", "r", "m", "d", "b", "l", "f", "st", "pr", "tr", "g", "h", "w", "v"};
    static constexpr std::array<const char*, 14> kMiddles = {
        "e", "a", "i", "o", "u", "ea", "io", "y", "ou", "ai", "ee", "ie", "oo", "au"};
    static constexpr std::array<const char*, 20> kEnds = {
        "",   "n", "r",  "s",  "t",  "l",  "d",  "m",    "ng", "nt",
        "st", "c", "ck", "th", "ll", "ss", "rt", "ment", "ly", "able"};
    std::string out;
    for (size_t syllables = 1 + low(5); syllables > 0; --syllables) {
      out += kStarts[low(kStarts.size())];
      out += kMiddles[low(kMiddles.size())];
      out += kEnds[low(kEnds.size())];
    }
    const uint64_t kind = rng_() % 16;
    if (kind < 3) out[0] = static_cast<char>(out[0] - 'a' + 'A');
    if (kind == 3) {
      for (char& letter : out) letter = static_cast<char>(letter - 'a' + 'A');
    }
    if (kind == 4) out = "_" + out;
    return out;
  }
  std::string between() {
    static constexpr std::string_view kMarks = ",,::..{}[]()'/-=<>+*#;!?$&|@%^~` \n\t";
    std::string out;
    for (size_t length = 1 + low(6); length > 0; --length) out += kMarks[rng_() % kMarks.size()];
    return out;
  }
  /// Characters of two, three or four bytes, the last one at times cut.
  std::string wide() {
    std::string out;
    for (size_t length = 1 + low(4); length > 0; --length) {
      const auto next = [this](uint32_t from, uint32_t count) {
        return static_cast<char>(from + static_cast<uint32_t>(rng_() % count));
      };
      const uint64_t kind = rng_() % 16;
      if (kind < 4) {
        out += {next(0xC3, 0x18), next(0x80, 0x40)};
      } else if (kind < 15) {
        out += {next(0xE4, 6), next(0x80, 0x40), next(0x80, 0x40)};
      } else {
        out += {'\xF0', '\x9F', next(0x80, 0x40), next(0x80, 0x40)};
      }
    }
    if (rng_() % 8 == 0) out.pop_back();
    return out;
  }

  size_t size_;
  bool lacks_bytes_;
  std::mt19937_64 rng_{7};
  std::vector<std::string> tokens_;
  std::unordered_set<std::string> seen_;
};

}  // namespace vitrine::bench
