// SPDX-License-Identifier: Apache-2.0
// Bounds on a JSON number, decided on its decimal digits as they are read: exact, without floating
// point. A bounded number is written without an exponent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace vitrine::constrain {

/// A decimal number: digits without leading (integer part) or trailing (fraction) zeros.
struct Decimal {
  bool negative = false;  // never for zero
  std::string integer;    // "0" where there is none
  std::string fraction;

  bool is_zero() const { return integer == "0" && fraction.empty(); }
  bool operator==(const Decimal&) const = default;
  /// Text that denotes the same value, the same for all spellings of it.
  std::string text() const;
};

/// Reads a JSON number, exponent included; none where it is no number or has more than 1000 digits
/// written out.
std::optional<Decimal> parse_decimal(std::string_view text);

struct NumberBound {
  enum Op : uint8_t { kAtLeast, kAbove, kAtMost, kBelow, kEqual, kMultipleOf } op = kEqual;
  Decimal value;         // all but kMultipleOf
  uint64_t modulus = 1;  // kMultipleOf: value = modulus / 10^scale, modulus < 2^31
  uint32_t scale = 0;

  bool operator==(const NumberBound&) const = default;
};

/// `value` as the step of kMultipleOf; none where it is zero or has too many digits.
std::optional<NumberBound> multiple_of(const Decimal& value);

/// What has been read of a number, as far as one bound needs it. Packs into 64 bits.
struct NumberState {
  enum Phase : uint32_t { kStart, kMinus, kInteger, kFraction };
  uint32_t phase = kStart;
  uint32_t negative = 0;
  uint32_t nonzero = 0;  // a digit other than 0 has been read
  uint32_t order = 0;    // 0: as the bound so far, 1: below, 2: above (magnitudes)
  uint32_t digits = 0;   // of the part that is being read, as many as matter
  uint32_t residue = 0;  // kMultipleOf

  uint32_t pack() const { return phase | negative << 2 | nonzero << 3 | order << 4 | digits << 6; }
  static NumberState unpack(uint32_t packed, uint32_t residue) {
    return {packed & 3, packed >> 2 & 1, packed >> 3 & 1, packed >> 4 & 3, packed >> 6, residue};
  }
};

/// The state after one more byte; none where no number that satisfies the bound goes on so. That
/// the bytes are a number at all is another language's matter.
std::optional<NumberState> number_step(const NumberBound& bound, NumberState state, uint8_t byte);
/// True where what has been read is a number that satisfies the bound.
bool number_accepts(const NumberBound& bound, const NumberState& state);

}  // namespace vitrine::constrain
