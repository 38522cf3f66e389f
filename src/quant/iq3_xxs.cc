// SPDX-License-Identifier: Apache-2.0
// The block format IQ3_XXS: a half d, 64 indices of 8 bits, then for each 32 values four times
// seven signs and a 4-bit scale s; (d * (0.5 + s) * 0.5) * entry.
#include "code_book_values.h"

namespace vitrine::quant {
namespace {

void dequantize_iq3_xxs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 98) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t signs = word_at(blocks + 66 + i / 4 * 4);
      const uint64_t first = kernels::kIq3XxsBook[byte_at(blocks, 2 + 2 * i)];
      const uint64_t second = kernels::kIq3XxsBook[byte_at(blocks, 3 + 2 * i)];
      write_signed(first | second << 32, kernels::kSignPatterns[signs >> (i % 4 * 7) & 127],
                   d * (0.5F + static_cast<float>(signs >> 28)) * 0.5F, out);
    }
  }
}

const BlockFormatRegistration kIq3XxsRegistration({.name = "IQ3_XXS",
                                                   .ggml_type = 18,
                                                   .block_size = kSuperBlock,
                                                   .block_bytes = 98,
                                                   .dequantize = &dequantize_iq3_xxs});

}  // namespace
}  // namespace vitrine::quant
