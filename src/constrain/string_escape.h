// SPDX-License-Identifier: Apache-2.0
// JSON's escapes inside a string, byte by byte: what has been read of one and what it can become.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace vitrine::constrain {

/// An inclusive range of Unicode code points.
struct CodeRange {
  uint32_t low = 0, high = 0;
  bool operator==(const CodeRange&) const = default;
};

inline constexpr uint32_t kMaxCodePoint = 0x10FFFF;

/// Where between two characters of a string the reader stands. Packs into 32 bits.
struct EscapeState {
  enum Phase : uint32_t { kNone, kBackslash, kHex, kNeedBackslash, kNeedU };
  uint32_t phase = kNone;
  uint32_t digits = 0;  // hexadecimal digits read, 0 to 3
  uint32_t value = 0;   // of those digits
  uint32_t high = 0;    // the high surrogate that waits for its other half, or 0

  uint32_t pack() const {
    return phase | digits << 3 | value << 5 | (high ? high - 0xD7FF : 0) << 17;
  }
  static EscapeState unpack(uint32_t packed) {
    EscapeState state{packed & 7, packed >> 3 & 3, packed >> 5 & 0xFFF, packed >> 17};
    if (state.high) state.high += 0xD7FF;
    return state;
  }
};

/// What one more byte did.
struct EscapeStep {
  enum Kind : uint8_t { kDead, kMore, kRawByte, kCodePoint, kClose } kind = kDead;
  EscapeState next;
  uint32_t code_point = 0;
};

/// Surrogates must come in pairs: a lone half is no Unicode text.
EscapeStep escape_step(EscapeState state, uint8_t byte);

/// The code points that a begun escape can still become (disjoint); none where `phase` is kNone.
struct CodeRanges {
  std::array<CodeRange, 4> ranges;
  int count = 0;
  void add(uint32_t low, uint32_t high) {
    if (low <= high) ranges[static_cast<size_t>(count++)] = {low, high};
  }
};
CodeRanges escape_range(EscapeState state);

}  // namespace vitrine::constrain
