// SPDX-License-Identifier: Apache-2.0
// The block format Q5_1: halves d and m, 32 high bits, 32 nibbles; d * q + m.
#include "block_format.h"
#include "block_quantizer.h"
#include "block_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q5_1(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 24, out += 32) {
    const float d = half_at(blocks);
    const float m = half_at(blocks + 2);
    for (int64_t i = 0; i < 32; ++i) {
      const uint32_t high = byte_at(blocks, 4 + i / 8) >> (i % 8) & 1;
      const uint32_t low = byte_at(blocks, 8 + i % 16) >> (i < 16 ? 0 : 4) & 15;
      out[i] = d * static_cast<float>(low | high << 4) + m;
    }
  }
}

const BlockFormatRegistration kQ51Registration({.name = "Q5_1",
                                                .ggml_type = 7,
                                                .block_size = 32,
                                                .block_bytes = 24,
                                                .dequantize = &dequantize_q5_1});

void quantize_q5_1(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += 32, out += 24) {
    std::array<float, 32> weights;
    error_weights(values, 32, importance, weights.data());
    const AffineFit fit = fit_affine_halves({values, 32}, weights.data(), 31);
    put_half(fit.scale, out);
    put_half(-fit.minimum, out + 2);
    std::array<uint8_t, 32> levels;
    affine_levels({values, 32}, fit, 31, levels.data());
    put_five_bits(levels.data(), out + 4);
    if (importance != nullptr) importance += 32;
  }
}

const BlockQuantizerRegistration kQ51Quantizer({"q5_1", 7, &quantize_q5_1});

}  // namespace
}  // namespace vitrine::quant
