// SPDX-License-Identifier: Apache-2.0
#include "scrubber.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace vitrine::compress {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

std::string digits_of(std::string_view text) {
  std::string digits;
  std::ranges::copy_if(text, std::back_inserter(digits), is_digit);
  return digits;
}

bool any(std::string_view) { return true; }

/// ISO 13616: the first four characters go to the end, letters count from 10; 1 remains mod 97.
bool is_iban(std::string_view match) {
  std::string plain;
  std::ranges::copy_if(match, std::back_inserter(plain), [](char c) { return c != ' '; });
  if (plain.size() < 15 || plain.size() > 34) return false;
  std::ranges::rotate(plain, plain.begin() + 4);
  int rest = 0;
  for (const char c : plain) {
    rest = is_digit(c) ? (rest * 10 + (c - '0')) % 97 : (rest * 100 + (c - 'A' + 10)) % 97;
  }
  return rest == 1;
}

/// Luhn's checksum.
bool is_card(std::string_view match) {
  const std::string digits = digits_of(match);
  if (digits.size() < 13 || digits.size() > 19) return false;
  int sum = 0;
  for (size_t i = 0; i < digits.size(); ++i) {
    int digit = digits[digits.size() - 1 - i] - '0';
    if (i % 2 == 1) digit = digit * 2 > 9 ? digit * 2 - 9 : digit * 2;
    sum += digit;
  }
  return sum % 10 == 0 && std::ranges::any_of(digits, [](char c) { return c != '0'; });
}

/// ITU-T E.164 has at most 15 digits.
bool is_phone(std::string_view match) {
  const size_t digits = digits_of(match).size();
  return digits >= 9 && digits <= 15;
}

/// Bits for a character, by how often each occurs in the word.
double entropy(std::string_view word) {
  std::array<int, 256> counts{};
  for (const char c : word) ++counts[static_cast<unsigned char>(c)];
  double bits = 0;
  for (const int count : counts) {
    if (count == 0) continue;
    const double share = count / static_cast<double>(word.size());
    bits -= share * std::log2(share);
  }
  return bits;
}

/// A word of letters and digits mixed, as random bytes make them; names in code have no such mix.
bool is_key(std::string_view match) {
  constexpr double kLeastBits = 3.3;
  const auto digits = std::ranges::count_if(match, is_digit);
  const auto letters = std::ranges::count_if(match, is_letter);
  return digits >= 3 && letters >= 3 && entropy(match) >= kLeastBits;
}

}  // namespace

Scrubber::Scrubber() {
  const auto add = [&](std::string_view kind, std::string_view stand_in, const char* pattern,
                       bool (*is_real)(std::string_view)) {
    kinds_.push_back({stand_in, tokenizer::Regex::from_pcre2(pattern), is_real});
    counts_.push_back({kind, 0});
  };
  add("email", "<EMAIL>",
      R"((?<![\w.+-])[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b)", any);
  add("iban", "<IBAN>", R"(\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,4})?\b)",
      is_iban);
  add("card", "<CARD>", R"((?<![\w.])[0-9](?:[ -]?[0-9]){12,18}(?![\w.]?[0-9]))", is_card);
  add("ip", "<IP>",
      R"((?<![\w.])(?:(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])\.){3}(?:25[0-5]|2[0-4][0-9]|1?[0-9]?[0-9])(?![\w]|\.[0-9])|(?<![\w:])(?:[0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}(?![\w:]))",
      any);
  add("phone", "<PHONE>",
      R"((?<![\w+.])(?:\+[0-9]{1,3}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?[0-9]{1,4}(?:[ .-]?[0-9]{2,4}){1,4}|\(?[0-9]{3}\)?[ .-][0-9]{3}[ .-][0-9]{4})(?![\w]|[.-][0-9]))",
      is_phone);
  add("key", "<KEY>", R"((?<![\w/+=-])[A-Za-z0-9+/_=-]{20,512}(?![\w/+=-]))", is_key);
}

std::string Scrubber::scrub(std::string_view text) {
  std::string current(text);
  for (size_t i = 0; i < kinds_.size(); ++i) {
    tokenizer::RegexScratch scratch;
    std::vector<tokenizer::RegexSpan> spans;
    kinds_[i].pattern.split(current, scratch, spans);
    std::string next;
    next.reserve(current.size());
    for (const tokenizer::RegexSpan& span : spans) {
      const auto part = std::string_view(current).substr(span.begin, span.end - span.begin);
      const bool is_found = span.is_match && !part.empty() && kinds_[i].is_real(part);
      next += is_found ? kinds_[i].stand_in : part;
      counts_[i].found += is_found ? 1 : 0;
    }
    current = std::move(next);
  }
  return current;
}

}  // namespace vitrine::compress
