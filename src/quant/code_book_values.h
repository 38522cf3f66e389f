// SPDX-License-Identifier: Apache-2.0
// Private to the room: how the formats IQ1 to IQ3 write an entry of their code books.
#pragma once

#include "block_format.h"
#include "kernels/cpu/code_books.h"

namespace vitrine::quant {

/// Writes eight magnitudes times `scale`, negative where the bit of `signs` is set.
inline void write_signed(uint64_t entry, uint32_t signs, float scale, float* out) {
  for (int i = 0; i < 8; ++i) {
    const float value = scale * static_cast<float>(entry >> (8 * i) & 255);
    out[i] = (signs >> i & 1) != 0 ? -value : value;
  }
}

/// Writes eight values of IQ1, shifted by 0.125 down or up, times `scale`.
inline void write_shifted(uint64_t entry, bool is_down, float scale, float* out) {
  const float shift = is_down ? -0.125F : 0.125F;
  for (int i = 0; i < 8; ++i) {
    out[i] = scale * (static_cast<float>(static_cast<int8_t>(entry >> (8 * i) & 255)) + shift);
  }
}

}  // namespace vitrine::quant
