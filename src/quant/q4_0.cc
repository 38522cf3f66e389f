// SPDX-License-Identifier: Apache-2.0
// The block format Q4_0: a half d, then 32 nibbles q (the low ones first); d * (q - 8).
#include "block_format.h"
#include "block_quantizer.h"
#include "block_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q4_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 18, out += 32) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 16; ++i) {
      const uint32_t pair = byte_at(blocks, 2 + i);
      out[i] = d * static_cast<float>(static_cast<int>(pair & 15) - 8);
      out[16 + i] = d * static_cast<float>(static_cast<int>(pair >> 4) - 8);
    }
  }
}

const BlockFormatRegistration kQ40Registration({.name = "Q4_0",
                                                .ggml_type = 2,
                                                .block_size = 32,
                                                .block_bytes = 18,
                                                .dequantize = &dequantize_q4_0});

void quantize_q4_0(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += 32, out += 18) {
    std::array<float, 32> weights;
    error_weights(values, 32, importance, weights.data());
    const float d = f16_to_float(float_to_f16(fit_symmetric({values, 32}, weights.data(), 8)));
    put_half(d, out);
    const auto level = [&](int64_t i) {
      return d == 0 ? 8 : nearest_level(values[i] / d, -8, 7) + 8;
    };
    for (int64_t i = 0; i < 16; ++i) {
      out[2 + i] = static_cast<std::byte>(level(i) | level(16 + i) << 4);
    }
    if (importance != nullptr) importance += 32;
  }
}

const BlockQuantizerRegistration kQ40Quantizer({"q4_0", 2, &quantize_q4_0});

}  // namespace
}  // namespace vitrine::quant
