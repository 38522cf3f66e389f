// SPDX-License-Identifier: Apache-2.0
// The block format Q4_K: halves d and e, eight 6-bit scales s and minimums t in 12 bytes, 256
// nibbles q; (d * s) * q - e * t.
#include "block_format.h"
#include "block_quantizer.h"
#include "block_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q4_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 144, out += kSuperBlock) {
    const float d = half_at(blocks);
    const float e = half_at(blocks + 2);
    for (int64_t group = 0; group < 8; ++group) {
      const ScaleAndMinimum six_bits = scale_and_minimum(blocks + 4, group);
      const float scale = d * six_bits.scale;
      const float minimum = e * six_bits.minimum;
      for (int64_t i = 0; i < 32; ++i) {
        const uint32_t q = byte_at(blocks, 16 + group / 2 * 32 + i) >> (group % 2 * 4) & 15;
        out[32 * group + i] = scale * static_cast<float>(q) - minimum;
      }
    }
  }
}

const BlockFormatRegistration kQ4KRegistration({.name = "Q4_K",
                                                .ggml_type = 12,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 144,
                                                .dequantize = &dequantize_q4_k});

void quantize_q4_k(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 144) {
    const AffineBlock chosen = choose_affine_block(values, importance, {32, 15, 63});
    put_affine_head(chosen, out);
    for (size_t i = 0; i < 128; ++i) {
      const size_t low = i / 32 * 64 + i % 32;
      out[16 + i] = static_cast<std::byte>(chosen.levels[low] | chosen.levels[low + 32] << 4);
    }
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kQ4KQuantizer({"q4_k", 12, &quantize_q4_k});

}  // namespace
}  // namespace vitrine::quant
