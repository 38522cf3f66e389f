// SPDX-License-Identifier: Apache-2.0
// The block format IQ2_XXS: a half d, then for each 32 values four indices of 8 bits, four times
// seven signs, and a 4-bit scale s; (d * (0.5 + s) * 0.25) * entry.
#include "code_book_values.h"

namespace vitrine::quant {
namespace {

void dequantize_iq2_xxs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 66) {
    const float d = half_at(blocks);
    for (int64_t group = 0; group < 8; ++group) {
      const std::byte* indices = blocks + 2 + 8 * group;
      const uint32_t signs = word_at(indices + 4);
      const float scale = d * (0.5F + static_cast<float>(signs >> 28)) * 0.25F;
      for (int64_t i = 0; i < 4; ++i, out += 8) {
        write_signed(kernels::kIq2XxsBook[byte_at(indices, i)],
                     kernels::kSignPatterns[signs >> (7 * i) & 127], scale, out);
      }
    }
  }
}

const BlockFormatRegistration kIq2XxsRegistration({.name = "IQ2_XXS",
                                                   .ggml_type = 16,
                                                   .block_size = kSuperBlock,
                                                   .block_bytes = 66,
                                                   .dequantize = &dequantize_iq2_xxs});

}  // namespace
}  // namespace vitrine::quant
