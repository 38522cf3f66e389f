// SPDX-License-Identifier: Apache-2.0
// The block format Q4_1: halves d and m, then 32 nibbles q (the low ones first); d * q + m.
#include "block_format.h"
#include "block_quantizer.h"
#include "block_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q4_1(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 20, out += 32) {
    const float d = half_at(blocks);
    const float m = half_at(blocks + 2);
    for (int64_t i = 0; i < 16; ++i) {
      const uint32_t pair = byte_at(blocks, 4 + i);
      out[i] = d * static_cast<float>(pair & 15) + m;
      out[16 + i] = d * static_cast<float>(pair >> 4) + m;
    }
  }
}

const BlockFormatRegistration kQ41Registration({.name = "Q4_1",
                                                .ggml_type = 3,
                                                .block_size = 32,
                                                .block_bytes = 20,
                                                .dequantize = &dequantize_q4_1});

void quantize_q4_1(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += 32, out += 20) {
    std::array<float, 32> weights;
    error_weights(values, 32, importance, weights.data());
    const AffineFit fit = fit_affine_halves({values, 32}, weights.data(), 15);
    put_half(fit.scale, out);
    put_half(-fit.minimum, out + 2);
    std::array<uint8_t, 32> levels;
    affine_levels({values, 32}, fit, 15, levels.data());
    for (size_t i = 0; i < 16; ++i) {
      out[4 + i] = static_cast<std::byte>(levels[i] | levels[16 + i] << 4);
    }
    if (importance != nullptr) importance += 32;
  }
}

const BlockQuantizerRegistration kQ41Quantizer({"q4_1", 3, &quantize_q4_1});

}  // namespace
}  // namespace vitrine::quant
