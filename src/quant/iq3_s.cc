// SPDX-License-Identifier: Apache-2.0
// The block format IQ3_S: a half d, the low 8 bits of 64 indices, their high bits, 32 bytes of
// signs, then 8 4-bit scales s; (d * (1 + 2 * s)) * entry.
#include "code_book_values.h"

namespace vitrine::quant {
namespace {

void dequantize_iq3_s(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 110) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t high = byte_at(blocks, 66 + i / 4) >> (i % 4 * 2);
      const uint32_t s = byte_at(blocks, 106 + i / 8) >> (i % 8 / 4 * 4) & 15;
      const uint64_t first = kernels::kIq3SBook[byte_at(blocks, 2 + 2 * i) | (high & 1) << 8];
      const uint64_t second = kernels::kIq3SBook[byte_at(blocks, 3 + 2 * i) | (high & 2) << 7];
      write_signed(first | second << 32, byte_at(blocks, 74 + i), d * static_cast<float>(1 + 2 * s),
                   out);
    }
  }
}

const BlockFormatRegistration kIq3SRegistration({.name = "IQ3_S",
                                                 .ggml_type = 21,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 110,
                                                 .dequantize = &dequantize_iq3_s});

}  // namespace
}  // namespace vitrine::quant
