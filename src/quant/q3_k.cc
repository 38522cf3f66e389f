// SPDX-License-Identifier: Apache-2.0
// The block format Q3_K: 256 high bits h, 256 2-bit q, 16 6-bit scales s in 12 bytes, a half d;
// (d * (s - 32)) * (q - 4 * !h).
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q3_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 110, out += kSuperBlock) {
    const float d = half_at(blocks + 108);
    const std::byte* scales = blocks + 96;
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const int64_t group = i / 16;
      const uint32_t low = byte_at(scales, group % 8) >> (group / 8 * 4) & 15;
      const uint32_t high = byte_at(scales, 8 + group % 4) >> (group / 4 * 2) & 3;
      const float scale = d * static_cast<float>(static_cast<int>(low | high << 4) - 32);
      const uint32_t q = byte_at(blocks, 32 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
      const uint32_t bit = byte_at(blocks, i % 32) >> (i / 32) & 1;
      out[i] = scale * static_cast<float>(static_cast<int>(q) - (bit == 0 ? 4 : 0));
    }
  }
}

const BlockFormatRegistration kQ3KRegistration({.name = "Q3_K",
                                                .ggml_type = 11,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 110,
                                                .dequantize = &dequantize_q3_k});

}  // namespace
}  // namespace vitrine::quant
