// SPDX-License-Identifier: Apache-2.0
// Private to the room: how a block format's file registers it, and how it reads a block.
#pragma once

#include <cstring>

#include "vitrine/quant.h"

namespace vitrine::quant {

/// Every format's file holds one static object of this type.
class BlockFormatRegistration {
 public:
  explicit BlockFormatRegistration(const BlockFormat& format);
};

/// Counts the values of the blocks named *_K, TQ* and IQ*, but for IQ4_NL.
inline constexpr int64_t kSuperBlock = 256;

inline uint32_t byte_at(const std::byte* bytes, int64_t index) {
  return std::to_integer<uint32_t>(bytes[index]);
}

/// Returns the 16 or 32 bits at an address, lowest byte first.
inline uint32_t short_at(const std::byte* bytes) {
  return byte_at(bytes, 0) | byte_at(bytes, 1) << 8;
}
inline uint32_t word_at(const std::byte* bytes) {
  return short_at(bytes) | short_at(bytes + 2) << 16;
}

/// The IEEE half at an address, widened.
inline float half_at(const std::byte* bytes) {
  return f16_to_float(static_cast<uint16_t>(short_at(bytes)));
}

/// The 6-bit scale and minimum of one of the eight groups of a Q4_K or Q5_K block.
struct ScaleAndMinimum {
  float scale, minimum;
};
inline ScaleAndMinimum scale_and_minimum(const std::byte* scales, int64_t group) {
  if (group < 4) {
    return {static_cast<float>(byte_at(scales, group) & 63),
            static_cast<float>(byte_at(scales, group + 4) & 63)};
  }
  const uint32_t low = byte_at(scales, group + 4);
  return {static_cast<float>((low & 15) | (byte_at(scales, group - 4) >> 6 << 4)),
          static_cast<float>((low >> 4) | (byte_at(scales, group) >> 6 << 4))};
}

/// The sixteen values of IQ4_NL and IQ4_XS.
inline constexpr float kNonlinearValues[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};

/// The sixteen values of E2M1, doubled to be whole.
inline constexpr float kDoubledE2m1[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace vitrine::quant
