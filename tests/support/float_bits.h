// SPDX-License-Identifier: Apache-2.0
// What a test says of two floats that should be one: both values and both bit patterns.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace vitrine::testing_support {

/// "0.100000001 (0x3dcccccd)": enough digits to have the number again, and its bits.
inline std::string with_bits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  char text[48];
  std::snprintf(text, sizeof(text), "%.9g (0x%08x)", static_cast<double>(value),
                static_cast<unsigned>(bits));
  return text;
}

/// "element 3: 1 (0x3f800000) and 2 (0x40000000)"
inline std::string different_elements(size_t index, float a, float b) {
  return "element " + std::to_string(index) + ": " + with_bits(a) + " and " + with_bits(b);
}

}  // namespace vitrine::testing_support
