// SPDX-License-Identifier: Apache-2.0
// The block format Q5_0: a half d, 32 high bits, 32 nibbles; d * (q - 16).
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q5_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 22, out += 32) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i) {
      const uint32_t high = byte_at(blocks, 2 + i / 8) >> (i % 8) & 1;
      const uint32_t low = byte_at(blocks, 6 + i % 16) >> (i < 16 ? 0 : 4) & 15;
      out[i] = d * static_cast<float>(static_cast<int>(low | high << 4) - 16);
    }
  }
}

const BlockFormatRegistration kQ50Registration({.name = "Q5_0",
                                                .ggml_type = 6,
                                                .block_size = 32,
                                                .block_bytes = 22,
                                                .dequantize = &dequantize_q5_0});

}  // namespace
}  // namespace vitrine::quant
