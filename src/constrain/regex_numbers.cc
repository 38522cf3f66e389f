// SPDX-License-Identifier: Apache-2.0
// JSON's numbers as expressions, of any number of digits or of so many.
#include "regex_pool.h"

namespace vitrine::constrain {

namespace {

ByteSet set_of(std::string_view members) {
  ByteSet out;
  for (const char member : members) out.add(static_cast<uint8_t>(member));
  return out;
}

}  // namespace

NodeId RegexPool::integer(bool allow_zeros, const NumberDigits& digits) {
  const NodeId minus = any_of(kEpsilonNode, bytes(set_of("-")));
  const NodeId zero = bytes(set_of("0"));
  const uint32_t more = digits.integer == kUnbounded ? kUnbounded : digits.integer - 1;
  const NodeId others =
      cat(bytes(ByteSet::range('1', '9')), repeat(bytes(ByteSet::range('0', '9')), 0, more));
  const NodeId whole = cat(minus, any_of(zero, others));
  if (!allow_zeros) return whole;
  const NodeId zeros = cat(bytes(set_of(".")), repeat(zero, 1, digits.fraction));
  return cat(whole, any_of(kEpsilonNode, zeros));
}

NodeId RegexPool::plain_number(const NumberDigits& digits) {
  const NodeId behind = repeat(bytes(ByteSet::range('0', '9')), 1, digits.fraction);
  return cat(integer(false, digits), any_of(kEpsilonNode, cat(bytes(set_of(".")), behind)));
}

NodeId RegexPool::number(const NumberDigits& digits) {
  const NodeId power = repeat(bytes(ByteSet::range('0', '9')), 1, digits.exponent);
  const NodeId sign = any_of(kEpsilonNode, bytes(set_of("+-")));
  const NodeId exponent = cat(bytes(set_of("eE")), cat(sign, power));
  return cat(plain_number(digits), any_of(kEpsilonNode, exponent));
}

}  // namespace vitrine::constrain
