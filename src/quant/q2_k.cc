// SPDX-License-Identifier: Apache-2.0
// The block format Q2_K: 16 pairs of nibbles (scale s, minimum t), 256 2-bit q, halves d and e;
// (d * s) * q - e * t.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q2_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 84, out += kSuperBlock) {
    const float d = half_at(blocks + 80);
    const float e = half_at(blocks + 82);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const uint32_t pair = byte_at(blocks, i / 16);
      const float scale = d * static_cast<float>(pair & 15);
      const float minimum = e * static_cast<float>(pair >> 4);
      // 128 values share 32 bytes: the lowest two bits of each are the first 32.
      const uint32_t q = byte_at(blocks, 16 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
      out[i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

const BlockFormatRegistration kQ2KRegistration({.name = "Q2_K",
                                                .ggml_type = 10,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 84,
                                                .dequantize = &dequantize_q2_k});

}  // namespace
}  // namespace vitrine::quant
