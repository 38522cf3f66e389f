// SPDX-License-Identifier: Apache-2.0
#include "number_bound.h"

#include <algorithm>

namespace vitrine::constrain {

namespace {

constexpr int kMaxDigits = 1000;

bool is_digit(char byte) { return byte >= '0' && byte <= '9'; }

/// The order of magnitudes once the integer part is complete.
uint32_t integer_order(const NumberBound& bound, const NumberState& state) {
  const size_t length = bound.value.integer.size();
  if (state.digits < length) return 1;
  if (state.digits > length) return 2;
  return state.order;
}

/// -1, 0, 1: the number read compared with the bound's value.
int compare(const NumberBound& bound, const NumberState& state) {
  const Decimal& value = bound.value;
  if (!state.nonzero) return value.is_zero() ? 0 : value.negative ? 1 : -1;
  const bool negative = state.negative != 0;
  if (value.is_zero() || negative != value.negative) return negative ? -1 : 1;
  uint32_t order = state.order;
  if (state.phase == NumberState::kInteger) order = integer_order(bound, state);
  const size_t fraction_read = state.phase == NumberState::kFraction ? state.digits : 0;
  if (order == 0 && fraction_read < value.fraction.size()) order = 1;
  if (order == 0) return 0;
  return (order == 1) != negative ? -1 : 1;
}

}  // namespace

std::string Decimal::text() const {
  return (negative ? "-" : "") + integer + (fraction.empty() ? "" : "." + fraction);
}

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal out;
  size_t at = 0;
  const auto digits = [&] {
    const size_t start = at;
    while (at < text.size() && is_digit(text[at])) ++at;
    return text.substr(start, at - start);
  };
  if (at < text.size() && text[at] == '-') {
    out.negative = true;
    ++at;
  }
  const std::string_view integer = digits();
  if (integer.empty()) return std::nullopt;
  std::string_view fraction;
  if (at < text.size() && text[at] == '.') {
    ++at;
    fraction = digits();
    if (fraction.empty()) return std::nullopt;
  }
  long exponent = 0;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    bool minus = false;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) minus = text[at++] == '-';
    const std::string_view power = digits();
    if (power.empty()) return std::nullopt;
    for (char digit : power) exponent = std::min(exponent * 10 + (digit - '0'), 1000000L);
    if (minus) exponent = -exponent;
  }
  if (at != text.size()) return std::nullopt;
  std::string all = std::string(integer) + std::string(fraction);
  const size_t leading = std::min(all.find_first_not_of('0'), all.size());
  if (leading == all.size()) return Decimal{false, "0", ""};
  long point = static_cast<long>(integer.size()) + exponent;  // digits of `all` before the point
  if (point > kMaxDigits || static_cast<long>(all.size()) - point > kMaxDigits) return std::nullopt;
  if (point > static_cast<long>(all.size()))
    all.append(static_cast<size_t>(point) - all.size(), '0');
  if (point < 0) {
    all.insert(0, static_cast<size_t>(-point), '0');
    point = 0;
  }
  out.integer = all.substr(0, static_cast<size_t>(point));
  out.fraction = all.substr(static_cast<size_t>(point));
  out.integer.erase(0, std::min(out.integer.find_first_not_of('0'), out.integer.size()));
  if (out.integer.empty()) out.integer = "0";
  out.fraction.erase(out.fraction.find_last_not_of('0') + 1);
  return out;
}

std::optional<NumberBound> multiple_of(const Decimal& value) {
  const std::string digits = value.integer + value.fraction;
  if (value.is_zero() || digits.size() > 15) return std::nullopt;
  NumberBound bound;
  bound.op = NumberBound::kMultipleOf;
  bound.modulus = std::stoull(digits);
  bound.scale = static_cast<uint32_t>(value.fraction.size());
  if (bound.modulus >= uint64_t{1} << 31) return std::nullopt;
  return bound;
}

std::optional<NumberState> number_step(const NumberBound& bound, NumberState state, uint8_t byte) {
  if (byte == '-') {
    if (state.phase != NumberState::kStart) return std::nullopt;
    state.phase = NumberState::kMinus;
    state.negative = 1;
    return state;
  }
  const bool multiple = bound.op == NumberBound::kMultipleOf;
  if (byte == '.') {
    if (state.phase != NumberState::kInteger) return std::nullopt;
    if (!multiple) state.order = integer_order(bound, state);
    state.phase = NumberState::kFraction;
    state.digits = 0;
    return state;
  }
  if (byte < '0' || byte > '9') return std::nullopt;
  const uint32_t digit = byte - '0';
  if (state.phase != NumberState::kFraction) state.phase = NumberState::kInteger;
  const bool fraction = state.phase == NumberState::kFraction;
  if (digit != 0) state.nonzero = 1;
  if (multiple) {
    if (fraction && state.digits == bound.scale) {
      if (digit != 0) return std::nullopt;
      return state;
    }
    state.residue = static_cast<uint32_t>((uint64_t{state.residue} * 10 + digit) % bound.modulus);
    if (fraction) ++state.digits;
    return state;
  }
  const std::string& part = fraction ? bound.value.fraction : bound.value.integer;
  if (state.digits < part.size()) {
    const uint32_t wanted = static_cast<uint32_t>(part[state.digits] - '0');
    if (state.order == 0 && digit != wanted) state.order = digit < wanted ? 1 : 2;
    ++state.digits;
  } else if (fraction) {
    if (state.order == 0 && digit != 0) state.order = 2;
  } else {
    state.digits = static_cast<uint32_t>(part.size()) + 1;
    state.order = 2;
  }
  return state;
}

bool number_accepts(const NumberBound& bound, const NumberState& state) {
  if (state.phase != NumberState::kInteger && state.phase != NumberState::kFraction) return false;
  switch (bound.op) {
    case NumberBound::kAtLeast: return compare(bound, state) >= 0;
    case NumberBound::kAbove: return compare(bound, state) > 0;
    case NumberBound::kAtMost: return compare(bound, state) <= 0;
    case NumberBound::kBelow: return compare(bound, state) < 0;
    case NumberBound::kEqual: return compare(bound, state) == 0;
    default: break;
  }
  uint64_t residue = state.residue;
  const uint32_t read = state.phase == NumberState::kFraction ? state.digits : 0;
  for (uint32_t i = read; i < bound.scale; ++i) residue = residue * 10 % bound.modulus;
  return residue == 0;
}

}  // namespace vitrine::constrain
