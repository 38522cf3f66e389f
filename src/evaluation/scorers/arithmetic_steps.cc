// SPDX-License-Identifier: Apache-2.0
#include "evaluation/scorers/arithmetic_steps.h"

#include <cmath>
#include <utility>

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostSteps = 1000;
constexpr size_t kMostDigits = 30;

bool is_digit(std::string_view text, size_t at) {
  return at < text.size() && text[at] >= '0' && text[at] <= '9';
}

bool is_letter(std::string_view text, size_t at) {
  return at < text.size() && ((text[at] >= 'a' && text[at] <= 'z') ||
                              (text[at] >= 'A' && text[at] <= 'Z') || text[at] == '_');
}

/// Three digits and no fourth behind the comma at `at`.
bool is_group(std::string_view text, size_t at) {
  return text[at] == ',' && is_digit(text, at + 1) && is_digit(text, at + 2) &&
         is_digit(text, at + 3) && !is_digit(text, at + 4);
}

constexpr std::string_view kMinus = "\xE2\x88\x92";  // U+2212
constexpr std::string_view kTimes = "\xC3\x97";      // U+00D7
constexpr std::string_view kDot = "\xC2\xB7";        // U+00B7
constexpr std::string_view kDivide = "\xC3\xB7";     // U+00F7

/// The operator at `at` ('+', '-', '*', '/' or '=') and its bytes; '\0' where there is none.
std::pair<char, size_t> read_operator(std::string_view text, size_t at) {
  const std::string_view rest = text.substr(at);
  if (rest.empty()) return {'\0', 0};
  if (rest.starts_with(kMinus)) return {'-', kMinus.size()};
  if (rest.starts_with(kTimes) || rest.starts_with(kDot)) return {'*', 2};
  if (rest.starts_with(kDivide)) return {'/', kDivide.size()};
  if (rest.starts_with("\\times")) return {'*', 6};
  if (rest.starts_with("\\cdot")) return {'*', 5};
  if (rest.starts_with("\\div")) return {'/', 4};
  const char byte = rest[0];
  if (byte == 'x' || byte == 'X') {
    return is_letter(text, at + 1) ? std::pair{'\0', size_t{0}} : std::pair{'*', size_t{1}};
  }
  const bool is_one = byte == '+' || byte == '-' || byte == '*' || byte == '/' || byte == '=';
  return is_one ? std::pair{byte, size_t{1}} : std::pair{'\0', size_t{0}};
}

size_t skip_marks(std::string_view text, size_t at) {
  constexpr std::string_view kMarks = " \t$%";
  while (at < text.size() && kMarks.find(text[at]) != std::string_view::npos) ++at;
  return at;
}

/// Numbers and operators in a row: [0] op[0] [1] op[1] …
struct Chain {
  std::vector<WrittenNumber> numbers;
  std::vector<char> operators;
  size_t begin = 0, end = 0;
};

/// The chain that begins with the number at `at`.
Chain read_chain(std::string_view text, size_t at) {
  Chain chain;
  chain.begin = chain.end = at;
  while (true) {
    at = skip_marks(text, at);
    // A sign within the chain ("3 × -2") belongs to the number.
    const bool is_negative = !chain.numbers.empty() && at < text.size() && text[at] == '-';
    std::optional<WrittenNumber> number = read_number(text, at + (is_negative ? 1 : 0));
    if (!number) break;
    if (is_negative) number->value = -number->value;
    chain.numbers.push_back(*number);
    chain.end = number->end;
    at = skip_marks(text, number->end);
    const auto [sign, size] = read_operator(text, at);
    if (sign == '\0') break;
    chain.operators.push_back(sign);
    at += size;
  }
  chain.operators.resize(chain.numbers.empty() ? 0 : chain.numbers.size() - 1);
  return chain;
}

/// What numbers [first, last] give, products first; nothing for a division by zero.
std::optional<double> value_of(const Chain& chain, size_t first, size_t last) {
  double sum = 0;
  double product = chain.numbers[first].value;
  for (size_t i = first; i < last; ++i) {
    const double next = chain.numbers[i + 1].value;
    switch (chain.operators[i]) {
      case '*': product *= next; break;
      case '/':
        if (next == 0) return std::nullopt;
        product /= next;
        break;
      default: sum += product; product = chain.operators[i] == '-' ? -next : next;
    }
  }
  return sum + product;
}

void add_steps(std::string_view text, const Chain& chain, std::vector<ArithmeticStep>& steps) {
  size_t first = 0;
  for (size_t i = 0; i < chain.operators.size(); ++i) {
    if (chain.operators[i] != '=') continue;
    const WrittenNumber& stated = chain.numbers[i + 1];
    if (i > first && steps.size() < kMostSteps) {
      const std::optional<double> value = value_of(chain, first, i);
      const double half_unit = 0.5 * std::pow(10.0, -stated.decimals);
      // A whole number is stated exactly where the left side gives one, and else rounded.
      const double room = value && *value == std::floor(*value) && stated.decimals == 0
                              ? 0
                              : half_unit * (1 + 1e-9);
      const size_t begin = chain.numbers[first].begin;
      steps.push_back(
          {std::string(text.substr(begin, stated.end - begin)), stated.value,
           value && std::abs(*value - stated.value) <= room + std::abs(*value) * 1e-12});
    }
    first = i + 1;
  }
}

/// A minus before the number at `begin` that is a sign and stands between no two numbers.
bool has_sign(std::string_view text, size_t begin) {
  size_t at = begin;
  if (at > 0 && text[at - 1] == '$') --at;
  if (at >= kMinus.size() && text.substr(at - kMinus.size(), kMinus.size()) == kMinus) {
    at -= kMinus.size();
  } else if (at > 0 && text[at - 1] == '-') {
    --at;
  } else {
    return false;
  }
  return at == 0 || !(is_digit(text, at - 1) || is_letter(text, at - 1) || text[at - 1] == ')');
}

WrittenNumber with_sign(std::string_view text, WrittenNumber number) {
  if (has_sign(text, number.begin)) number.value = -number.value;
  return number;
}

}  // namespace

std::optional<WrittenNumber> read_number(std::string_view text, size_t at) {
  if (!is_digit(text, at)) return std::nullopt;
  WrittenNumber number{.begin = at};
  size_t digits = 0;
  const auto take = [&](double weight) {
    if (++digits <= kMostDigits) number.value = number.value * weight + (text[at] - '0');
    ++at;
  };
  while (is_digit(text, at) ||
         (at < text.size() && at - number.begin <= 3 * digits && is_group(text, at))) {
    if (text[at] == ',') ++at;
    take(10);
  }
  if (at < text.size() && text[at] == '.' && is_digit(text, at + 1)) {
    ++at;
    while (is_digit(text, at)) {
      take(10);
      ++number.decimals;
    }
    number.value /= std::pow(10.0, number.decimals);
  }
  number.end = at;
  return number;
}

std::optional<WrittenNumber> first_number(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (const auto number = read_number(text, i)) return with_sign(text, *number);
  }
  return std::nullopt;
}

std::optional<WrittenNumber> last_number(std::string_view text) {
  std::optional<WrittenNumber> last;
  for (size_t i = 0; i < text.size();) {
    const auto number = read_number(text, i);
    i = number ? number->end : i + 1;
    if (number) last = number;
  }
  return last ? std::optional(with_sign(text, *last)) : std::nullopt;
}

std::vector<ArithmeticStep> arithmetic_steps(std::string_view text) {
  std::vector<ArithmeticStep> steps;
  for (size_t i = 0; i < text.size();) {
    if (!is_digit(text, i)) {
      ++i;
      continue;
    }
    Chain chain = read_chain(text, i);
    if (has_sign(text, i)) chain.numbers.front().value = -chain.numbers.front().value;
    add_steps(text, chain, steps);
    i = std::max(chain.end, i + 1);
  }
  return steps;
}

}  // namespace vitrine::evaluation
