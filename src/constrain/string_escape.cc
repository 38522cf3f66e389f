// SPDX-License-Identifier: Apache-2.0
#include "string_escape.h"

#include <algorithm>

namespace vitrine::constrain {

namespace {

int hex_value(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  if (byte >= 'A' && byte <= 'F') return byte - 'A' + 10;
  return -1;
}

EscapeStep more(EscapeState next) { return {EscapeStep::kMore, next, 0}; }
EscapeStep character(uint32_t code_point) { return {EscapeStep::kCodePoint, {}, code_point}; }

EscapeStep after_backslash(uint8_t byte) {
  switch (byte) {
    case '"':
    case '\\':
    case '/': return character(byte);
    case 'b': return character('\b');
    case 'f': return character('\f');
    case 'n': return character('\n');
    case 'r': return character('\r');
    case 't': return character('\t');
    case 'u': return more({EscapeState::kHex, 0, 0, 0});
    default: return {};
  }
}

EscapeStep hex_digit(EscapeState state, uint8_t byte) {
  const int digit = hex_value(byte);
  if (digit < 0) return {};
  const uint32_t value = state.value << 4 | static_cast<uint32_t>(digit);
  EscapeStep step;
  if (state.digits < 3) {
    step = more({EscapeState::kHex, state.digits + 1, value, state.high});
    return escape_range(step.next).count > 0 ? step : EscapeStep{};
  }
  const bool is_low = value >= 0xDC00 && value <= 0xDFFF;
  if (state.high) {
    if (!is_low) return {};
    return character(0x10000 + ((state.high - 0xD800) << 10) + (value - 0xDC00));
  }
  if (is_low) return {};
  if (value >= 0xD800 && value <= 0xDBFF) return more({EscapeState::kNeedBackslash, 0, 0, value});
  return character(value);
}

}  // namespace

EscapeStep escape_step(EscapeState state, uint8_t byte) {
  switch (state.phase) {
    case EscapeState::kNone:
      if (byte == '"') return {EscapeStep::kClose, {}, 0};
      if (byte == '\\') return more({EscapeState::kBackslash, 0, 0, 0});
      if (byte < 0x20) return {};
      return {EscapeStep::kRawByte, {}, byte};
    case EscapeState::kBackslash: return after_backslash(byte);
    case EscapeState::kHex: return hex_digit(state, byte);
    case EscapeState::kNeedBackslash:
      return byte == '\\' ? more({EscapeState::kNeedU, 0, 0, state.high}) : EscapeStep{};
    default: return byte == 'u' ? more({EscapeState::kHex, 0, 0, state.high}) : EscapeStep{};
  }
}

CodeRanges escape_range(EscapeState state) {
  CodeRanges out;
  if (state.phase == EscapeState::kNone) return out;
  if (state.phase == EscapeState::kBackslash) {
    out.add(0, 0xD7FF);
    out.add(0xE000, kMaxCodePoint);
    return out;
  }
  const uint32_t free_bits = 4 * (4 - (state.phase == EscapeState::kHex ? state.digits : 0));
  const uint32_t low = state.phase == EscapeState::kHex ? state.value << free_bits : 0;
  const uint32_t high = low + (1U << free_bits) - 1;
  if (state.high) {
    const uint32_t base = 0x10000 + ((state.high - 0xD800) << 10);
    const uint32_t first = std::max(low, 0xDC00U), last = std::min(high, 0xDFFFU);
    if (first <= last) out.add(base + first - 0xDC00, base + last - 0xDC00);
    return out;
  }
  out.add(low, std::min(high, 0xD7FFU));
  const uint32_t first = std::max(low, 0xD800U), last = std::min(high, 0xDBFFU);
  if (first <= last) {
    out.add(0x10000 + ((first - 0xD800) << 10), 0x10000 + ((last - 0xD800) << 10) + 0x3FF);
  }
  out.add(std::max(low, 0xE000U), high);
  return out;
}

}  // namespace vitrine::constrain
