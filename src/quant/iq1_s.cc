// SPDX-License-Identifier: Apache-2.0
// The block format IQ1_S: a half d, the low 8 bits of 32 indices, then for each 32 values four
// times the high 3 bits of an index, a 3-bit scale s and the sign of a shift of 0.125; (d * (2 * s
// + 1)) * (entry + shift).
#include "code_book_values.h"

namespace vitrine::quant {
namespace {

void dequantize_iq1_s(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 50) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t high = short_at(blocks + 34 + i / 4 * 2);
      const uint32_t index = byte_at(blocks, 2 + i) | (high >> (i % 4 * 3) & 7) << 8;
      write_shifted(kernels::kIq1Book[index], (high & 0x8000) != 0,
                    d * static_cast<float>(2 * (high >> 12 & 7) + 1), out);
    }
  }
}

const BlockFormatRegistration kIq1SRegistration({.name = "IQ1_S",
                                                 .ggml_type = 19,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 50,
                                                 .dequantize = &dequantize_iq1_s});

}  // namespace
}  // namespace vitrine::quant
