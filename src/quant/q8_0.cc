// SPDX-License-Identifier: Apache-2.0
// The block format Q8_0: a half d, then 32 signed bytes q; d * q.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_q8_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 34, out += 32) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i) {
      out[i] = d * static_cast<float>(static_cast<int8_t>(byte_at(blocks, 2 + i)));
    }
  }
}

const BlockFormatRegistration kQ80Registration({.name = "Q8_0",
                                                .ggml_type = 8,
                                                .block_size = 32,
                                                .block_bytes = 34,
                                                .dequantize = &dequantize_q8_0});

}  // namespace
}  // namespace vitrine::quant
