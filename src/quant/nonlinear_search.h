// SPDX-License-Identifier: Apache-2.0
// Private to the room: values as the sixteen numbers of IQ4_NL and IQ4_XS times a scale.
#pragma once

#include "block_format.h"
#include "scale_search.h"

namespace vitrine::quant {

/// Holds, for each half of a whole number from -128 on, which of the sixteen numbers is the nearest
/// to what lies within it: halfway between two of them is a multiple of a half.
static consteval std::array<uint8_t, 512> nearest_nonlinear() {
  std::array<uint8_t, 512> found{};
  for (size_t i = 0; i < found.size(); ++i) {
    const float middle = (static_cast<float>(i) + 0.5F) / 2 - 128;
    for (size_t n = 1; n < 16; ++n) {
      if (2 * middle > kNonlinearValues[n - 1] + kNonlinearValues[n]) {
        found[i] = static_cast<uint8_t>(n);
      }
    }
  }
  return found;
}
inline constexpr auto kNearestNonlinear = nearest_nonlinear();

/// The book: the largest size is taken for either end, a sixth less to a sixth more.
struct NonlinearEntries {
  static constexpr int64_t kWidth = 32;
  static constexpr bool kHasSign = true;
  static constexpr int kBeginnings = 34;
  static float beginning(int i) {
    const float part = 0.84F + 0.02F * static_cast<float>(i / 2);
    return part * kNonlinearValues[i % 2 == 0 ? 0 : 15];
  }
  static size_t index(float value) {
    const int half = static_cast<int>(std::min(511.0F, std::max(0.0F, 2 * value + 256)));
    return kNearestNonlinear[static_cast<size_t>(half)];
  }
  static void nearest(const float* values, const float*, float scale, float* entries) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (int64_t i = 0; i < kWidth; ++i) entries[i] = kNonlinearValues[index(values[i] * inverse)];
  }
  /// Writes the sixteen bytes of nibbles.
  static void put(const float* values, float scale, std::byte* out) {
    const float inverse = scale == 0 ? 0 : 1 / scale;
    for (size_t i = 0; i < 16; ++i) {
      out[i] =
          static_cast<std::byte>(index(values[i] * inverse) | index(values[16 + i] * inverse) << 4);
    }
  }
};

}  // namespace vitrine::quant
