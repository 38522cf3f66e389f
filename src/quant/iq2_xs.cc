// SPDX-License-Identifier: Apache-2.0
// The block format IQ2_XS: a half d, 32 times an index of 9 bits and seven signs, then 16 4-bit
// scales s; (d * (0.5 + s) * 0.25) * entry.
#include "code_book_values.h"

namespace vitrine::quant {
namespace {

void dequantize_iq2_xs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 74) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t index_and_signs = short_at(blocks + 2 + 2 * i);
      const uint32_t s = byte_at(blocks, 66 + i / 4) >> (i % 4 / 2 * 4) & 15;
      write_signed(kernels::kIq2XsBook[index_and_signs & 511],
                   kernels::kSignPatterns[index_and_signs >> 9],
                   d * (0.5F + static_cast<float>(s)) * 0.25F, out);
    }
  }
}

const BlockFormatRegistration kIq2XsRegistration({.name = "IQ2_XS",
                                                  .ggml_type = 17,
                                                  .block_size = kSuperBlock,
                                                  .block_bytes = 74,
                                                  .dequantize = &dequantize_iq2_xs});

}  // namespace
}  // namespace vitrine::quant
