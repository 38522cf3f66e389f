// SPDX-License-Identifier: Apache-2.0
// The block format Q5_K: halves d and e, eight 6-bit scales s and minimums t in 12 bytes, 256 high
// bits, 256 nibbles; (d * s) * q - e * t.
#include "block_format.h"
#include "block_quantizer.h"
#include "block_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q5_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 176, out += kSuperBlock) {
    const float d = half_at(blocks);
    const float e = half_at(blocks + 2);
    for (int64_t group = 0; group < 8; ++group) {
      const ScaleAndMinimum six_bits = scale_and_minimum(blocks + 4, group);
      const float scale = d * six_bits.scale;
      const float minimum = e * six_bits.minimum;
      for (int64_t i = 0; i < 32; ++i) {
        const uint32_t low = byte_at(blocks, 48 + group / 2 * 32 + i) >> (group % 2 * 4) & 15;
        const uint32_t high = byte_at(blocks, 16 + i) >> group & 1;
        out[32 * group + i] = scale * static_cast<float>(low | high << 4) - minimum;
      }
    }
  }
}

const BlockFormatRegistration kQ5KRegistration({.name = "Q5_K",
                                                .ggml_type = 13,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 176,
                                                .dequantize = &dequantize_q5_k});

void quantize_q5_k(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 176) {
    const AffineBlock chosen = choose_affine_block(values, importance, {32, 31, 63});
    put_affine_head(chosen, out);
    for (size_t i = 0; i < 32; ++i) {
      int high = 0;
      for (size_t g = 0; g < 8; ++g) high |= chosen.levels[32 * g + i] >> 4 << g;
      out[16 + i] = static_cast<std::byte>(high);
    }
    for (size_t i = 0; i < 128; ++i) {
      const size_t low = i / 32 * 64 + i % 32;
      out[48 + i] =
          static_cast<std::byte>((chosen.levels[low] & 15) | (chosen.levels[low + 32] & 15) << 4);
    }
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kQ5KQuantizer({"q5_k", 13, &quantize_q5_k});

}  // namespace
}  // namespace vitrine::quant
