// SPDX-License-Identifier: Apache-2.0
// The block format Q2_K: 16 pairs of nibbles (scale s, minimum t), 256 2-bit q, halves d and e;
// (d * s) * q - e * t.
#include "block_format.h"
#include "block_quantizer.h"
#include "block_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q2_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 84, out += kSuperBlock) {
    const float d = half_at(blocks + 80);
    const float e = half_at(blocks + 82);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const uint32_t pair = byte_at(blocks, i / 16);
      const float scale = d * static_cast<float>(pair & 15);
      const float minimum = e * static_cast<float>(pair >> 4);
      // 128 values share 32 bytes: the lowest two bits of each are the first 32.
      const uint32_t q = byte_at(blocks, 16 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
      out[i] = scale * static_cast<float>(q) - minimum;
    }
  }
}

const BlockFormatRegistration kQ2KRegistration({.name = "Q2_K",
                                                .ggml_type = 10,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 84,
                                                .dequantize = &dequantize_q2_k});

void quantize_q2_k(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 84) {
    const AffineBlock chosen = choose_affine_block(values, importance, {16, 3, 15});
    for (size_t g = 0; g < 16; ++g) {
      out[g] = static_cast<std::byte>(chosen.scales[g] | chosen.minimums[g] << 4);
    }
    put_two_bits(chosen.levels.data(), out + 16);
    put_half(chosen.d, out + 80);
    put_half(chosen.dmin, out + 82);
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kQ2KQuantizer({"q2_k", 10, &quantize_q2_k});

}  // namespace
}  // namespace vitrine::quant
