// SPDX-License-Identifier: Apache-2.0
// The block format Q4_K: halves d and e, eight 6-bit scales s and minimums t in 12 bytes, 256
// nibbles q; (d * s) * q - e * t.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q4_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 144, out += kSuperBlock) {
    const float d = half_at(blocks);
    const float e = half_at(blocks + 2);
    for (int64_t group = 0; group < 8; ++group) {
      const ScaleAndMinimum six_bits = scale_and_minimum(blocks + 4, group);
      const float scale = d * six_bits.scale;
      const float minimum = e * six_bits.minimum;
      for (int64_t i = 0; i < 32; ++i) {
        const uint32_t q = byte_at(blocks, 16 + group / 2 * 32 + i) >> (group % 2 * 4) & 15;
        out[32 * group + i] = scale * static_cast<float>(q) - minimum;
      }
    }
  }
}

const BlockFormatRegistration kQ4KRegistration({.name = "Q4_K",
                                                .ggml_type = 12,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 144,
                                                .dequantize = &dequantize_q4_k});

}  // namespace
}  // namespace vitrine::quant
