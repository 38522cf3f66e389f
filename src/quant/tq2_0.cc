// SPDX-License-Identifier: Apache-2.0
// The block format TQ2_0: 256 2-bit q (bits 2n of 32 neighbouring bytes hold 32 neighbours), a half
// d; (q - 1) * d. Ternary weights store 0 to 2; 3 is read as llama.cpp reads it.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_tq2_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 66, out += kSuperBlock) {
    const float d = half_at(blocks + 64);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const uint32_t q = byte_at(blocks, i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
      out[i] = static_cast<float>(static_cast<int>(q) - 1) * d;
    }
  }
}

const BlockFormatRegistration kTq20Registration({.name = "TQ2_0",
                                                 .ggml_type = 35,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 66,
                                                 .dequantize = &dequantize_tq2_0});

}  // namespace
}  // namespace vitrine::quant
