// SPDX-License-Identifier: Apache-2.0
// Damages files for the fuzz tests: bytes, the tokens of JSON, the header of safetensors files.
#pragma once

#include <cctype>
#include <cstdint>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace vitrine::testing {

using Files = std::map<std::string, std::string>;  // name -> content

class Mutator {
 public:
  /// `strings`: JSON strings, quotes included, that take the place of others now and then.
  Mutator(uint64_t seed, std::vector<std::string> strings)
      : random_(seed), strings_(std::move(strings)) {}

  size_t below(size_t bound) { return bound == 0 ? 0 : random_() % bound; }
  bool one_in(size_t n) { return below(n) == 0; }

  /// One to three mutations of one of the files.
  void mutate(Files& files) {
    auto file = std::next(files.begin(), static_cast<long>(below(files.size())));
    for (size_t count = 1 + below(3); count > 0; --count) {
      if (file->first.ends_with(".safetensors")) {
        mutate_safetensors(file->second);
      } else {
        mutate_json(file->second);
      }
    }
    if (one_in(50)) files.erase(file);
  }

 private:
  void mutate_safetensors(std::string& bytes) {
    const size_t kind = below(10);
    if (bytes.size() < 9 || kind == 0) return mutate_bytes(bytes);
    if (kind == 1) return set_length(bytes, hostile_number());
    if (kind == 2) return bytes.resize(below(bytes.size()));
    if (kind == 3) return bytes.resize(bytes.size() + 1 + below(64), static_cast<char>(below(256)));
    size_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<unsigned char>(bytes[i]);
    if (length > bytes.size() - 8) return mutate_bytes(bytes);
    std::string header = bytes.substr(8, length);
    mutate_json(header);
    bytes = bytes.substr(0, 8) + header + bytes.substr(8 + length);
    if (!one_in(10)) set_length(bytes, header.size());
  }

  static void set_length(std::string& bytes, uint64_t length) {
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i) & 0xff);
  }

  void mutate_bytes(std::string& bytes) {
    if (bytes.empty()) return bytes.push_back('{');
    const size_t position = below(bytes.size());
    switch (below(4)) {
      case 0: bytes[position] = static_cast<char>(bytes[position] ^ (1 << below(8))); break;
      case 1: bytes[position] = static_cast<char>(below(256)); break;
      case 2: bytes.erase(position, 1 + below(8)); break;
      default: bytes.insert(position, 1 + below(8), static_cast<char>(below(256)));
    }
  }

  void mutate_json(std::string& text) {
    std::vector<std::string> tokens = split(text);
    if (tokens.empty() || one_in(8)) return mutate_bytes(text);
    const size_t a = below(tokens.size());
    const size_t b = below(tokens.size());
    switch (below(7)) {
      case 0: std::swap(tokens[a], tokens[b]); break;
      case 1: tokens[a] = tokens[b]; break;
      case 2: tokens.erase(tokens.begin() + static_cast<long>(a)); break;
      case 3: tokens.insert(tokens.begin() + static_cast<long>(a), tokens[b]); break;
      case 4: replace_like(tokens, '0', std::to_string(hostile_number())); break;
      case 5: replace_like(tokens, '"', hostile_string()); break;
      default: tokens[a] = hostile_token();
    }
    text.clear();
    for (const std::string& token : tokens) text += token;
    if (one_in(200)) text.insert(below(text.size()), 100000, '[');
  }

  /// Replaces a token of the kind that starts with a digit ('0') or a quote.
  void replace_like(std::vector<std::string>& tokens, char kind, const std::string& replacement) {
    const size_t start = below(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      std::string& token = tokens[(start + i) % tokens.size()];
      const bool fits = kind == '"' ? token[0] == '"' : token[0] >= '0' && token[0] <= '9';
      if (!fits) continue;
      token = replacement;
      return;
    }
  }

  /// Strings, numbers and words, and every other byte alone.
  static std::vector<std::string> split(const std::string& text) {
    std::vector<std::string> tokens;
    for (size_t i = 0; i < text.size();) {
      size_t end = i + 1;
      if (text[i] == '"') {
        while (end < text.size() && text[end] != '"') ++end;
        end = std::min(end + 1, text.size());
      } else if (std::isalnum(static_cast<unsigned char>(text[i]))) {
        while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) ||
                                     text[end] == '.' || text[end] == '-')) {
          ++end;
        }
      }
      tokens.push_back(text.substr(i, end - i));
      i = end;
    }
    return tokens;
  }

  uint64_t hostile_number() {
    constexpr uint64_t kNumbers[] = {
        0,          1,          2,         3,          31,          32,
        63,         64,         65,        255,        4096,        65535,
        65536,      100000000,  100000001, 0x7fffffff, 0x80000000u, 0xffffffffu,
        1ull << 32, 1ull << 40, INT64_MAX, 1ull << 63, UINT64_MAX,  UINT64_MAX - 7};
    return one_in(3) ? random_() >> below(64) : kNumbers[below(std::size(kNumbers))];
  }

  std::string hostile_string() {
    return strings_.empty() ? "\"\"" : strings_[below(strings_.size())];
  }

  std::string hostile_token() {
    constexpr const char* kTokens[] = {"null", "true",   "false", "-1",         "1.5",   "1e400",
                                       "-0.0", "[]",     "{}",    "[0]",        "{",     "}",
                                       "[",    "]",      ",",     ":",          "\"",    "\\",
                                       "1e18", "1e-320", "NaN",   "{\"a\":{}}", "[[1]]", "[0,0,0]"};
    return kTokens[below(std::size(kTokens))];
  }

  std::mt19937_64 random_;
  std::vector<std::string> strings_;
};

}  // namespace vitrine::testing
