// SPDX-License-Identifier: Apache-2.0
// The block format Q2_0: a half d, then 64 2-bit q; (q - 1) * d.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q2_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 18, out += 64) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 64; ++i) {
      const uint32_t q = byte_at(blocks, 2 + i / 4) >> (i % 4 * 2) & 3;
      out[i] = static_cast<float>(static_cast<int>(q) - 1) * d;
    }
  }
}

const BlockFormatRegistration kQ20Registration({.name = "Q2_0",
                                                .ggml_type = 42,
                                                .block_size = 64,
                                                .block_bytes = 18,
                                                .dequantize = &dequantize_q2_0});

}  // namespace
}  // namespace vitrine::quant
