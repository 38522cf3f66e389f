// SPDX-License-Identifier: Apache-2.0
// The block format IQ4_XS: a half d, eight 6-bit scales s (two high bits each, then nibbles), then
// 256 nibbles that index sixteen values; (d * (s - 32)) * value.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_iq4_xs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 136) {
    const float d = half_at(blocks);
    const uint32_t high_bits = byte_at(blocks, 2) | byte_at(blocks, 3) << 8;
    for (int64_t group = 0; group < 8; ++group, out += 32) {
      const uint32_t low = byte_at(blocks, 4 + group / 2) >> (group % 2 * 4) & 15;
      const uint32_t six_bits = low | (high_bits >> (2 * group) & 3) << 4;
      const float scale = d * static_cast<float>(static_cast<int>(six_bits) - 32);
      for (int64_t i = 0; i < 16; ++i) {
        const uint32_t pair = byte_at(blocks, 8 + 16 * group + i);
        out[i] = scale * kNonlinearValues[pair & 15];
        out[16 + i] = scale * kNonlinearValues[pair >> 4];
      }
    }
  }
}

const BlockFormatRegistration kIq4XsRegistration({.name = "IQ4_XS",
                                                  .ggml_type = 23,
                                                  .block_size = kSuperBlock,
                                                  .block_bytes = 136,
                                                  .dequantize = &dequantize_iq4_xs});

}  // namespace
}  // namespace vitrine::quant
