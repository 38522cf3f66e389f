// SPDX-License-Identifier: Apache-2.0
// The block format Q1_0: a half d, then 128 bits; d where the bit is set, else -d.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q1_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 18, out += 128) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 128; ++i) {
      out[i] = (byte_at(blocks, 2 + i / 8) >> (i % 8) & 1) != 0 ? d : -d;
    }
  }
}

const BlockFormatRegistration kQ10Registration({.name = "Q1_0",
                                                .ggml_type = 41,
                                                .block_size = 128,
                                                .block_bytes = 18,
                                                .dequantize = &dequantize_q1_0});

}  // namespace
}  // namespace vitrine::quant
