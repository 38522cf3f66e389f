// SPDX-License-Identifier: Apache-2.0
// The block format IQ2_S: a half d, the low 8 bits of 32 indices, 32 bytes of signs, the high 2
// bits of the indices, then 16 4-bit scales s; (d * (0.5 + s) * 0.25) * entry.
#include "code_book_values.h"

namespace vitrine::quant {
namespace {

void dequantize_iq2_s(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 82) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t high = byte_at(blocks, 66 + i / 4) >> (i % 4 * 2) & 3;
      const uint32_t s = byte_at(blocks, 74 + i / 4) >> (i % 4 / 2 * 4) & 15;
      write_signed(kernels::kIq2SBook[byte_at(blocks, 2 + i) | high << 8], byte_at(blocks, 34 + i),
                   d * (0.5F + static_cast<float>(s)) * 0.25F, out);
    }
  }
}

const BlockFormatRegistration kIq2SRegistration({.name = "IQ2_S",
                                                 .ggml_type = 22,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 82,
                                                 .dequantize = &dequantize_iq2_s});

}  // namespace
}  // namespace vitrine::quant
