// SPDX-License-Identifier: Apache-2.0
// The block format IQ1_M: the low 8 bits of 32 indices, then for each of them a nibble with its
// high 3 bits and the sign of a shift of 0.125, then four words with four 3-bit scales s each,
// whose top nibbles are a half d; (d * (2 * s + 1)) * (entry + shift).
#include "code_book_values.h"

namespace vitrine::quant {
namespace {

void dequantize_iq1_m(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 56) {
    const std::byte* scales = blocks + 48;
    uint32_t half = 0;
    for (int64_t i = 0; i < 4; ++i) half |= short_at(scales + 2 * i) >> 12 << (4 * i);
    const float d = f16_to_float(static_cast<uint16_t>(half));
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t high = byte_at(blocks, 32 + i / 2) >> (i % 2 * 4) & 15;
      const uint32_t s = short_at(scales + i / 8 * 2) >> (i % 8 / 2 * 3) & 7;
      write_shifted(kernels::kIq1Book[byte_at(blocks, i) | (high & 7) << 8], (high & 8) != 0,
                    d * static_cast<float>(2 * s + 1), out);
    }
  }
}

const BlockFormatRegistration kIq1MRegistration({.name = "IQ1_M",
                                                 .ggml_type = 29,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 56,
                                                 .dequantize = &dequantize_iq1_m});

}  // namespace
}  // namespace vitrine::quant
