// SPDX-License-Identifier: Apache-2.0
// The block format Q6_K: 256 nibbles, 256 high pairs of bits, 16 signed scales s, a half d;
// (d * s) * (q - 32).
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q6_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 210, out += kSuperBlock) {
    const float d = half_at(blocks + 208);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const auto s = static_cast<int8_t>(byte_at(blocks, 192 + i / 16));
      const float scale = d * static_cast<float>(s);
      // The first 64 of 128 values are the low nibbles of 64 bytes.
      const uint32_t low = byte_at(blocks, i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
      const uint32_t high = byte_at(blocks, 128 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
      out[i] = scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
    }
  }
}

const BlockFormatRegistration kQ6KRegistration({.name = "Q6_K",
                                                .ggml_type = 14,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 210,
                                                .dequantize = &dequantize_q6_k});

}  // namespace
}  // namespace vitrine::quant
