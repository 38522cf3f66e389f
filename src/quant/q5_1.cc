// SPDX-License-Identifier: Apache-2.0
// The block format Q5_1: halves d and m, 32 high bits, 32 nibbles; d * q + m.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q5_1(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 24, out += 32) {
    const float d = half_at(blocks);
    const float m = half_at(blocks + 2);
    for (int64_t i = 0; i < 32; ++i) {
      const uint32_t high = byte_at(blocks, 4 + i / 8) >> (i % 8) & 1;
      const uint32_t low = byte_at(blocks, 8 + i % 16) >> (i < 16 ? 0 : 4) & 15;
      out[i] = d * static_cast<float>(low | high << 4) + m;
    }
  }
}

const BlockFormatRegistration kQ51Registration({.name = "Q5_1",
                                                .ggml_type = 7,
                                                .block_size = 32,
                                                .block_bytes = 24,
                                                .dequantize = &dequantize_q5_1});

}  // namespace
}  // namespace vitrine::quant
