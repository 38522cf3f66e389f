// SPDX-License-Identifier: Apache-2.0
// The block format Q5_0: a half d, 32 high bits, 32 nibbles; d * (q - 16).
#include "block_format.h"
#include "block_quantizer.h"
#include "scale_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q5_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 22, out += 32) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i) {
      const uint32_t high = byte_at(blocks, 2 + i / 8) >> (i % 8) & 1;
      const uint32_t low = byte_at(blocks, 6 + i % 16) >> (i < 16 ? 0 : 4) & 15;
      out[i] = d * static_cast<float>(static_cast<int>(low | high << 4) - 16);
    }
  }
}

const BlockFormatRegistration kQ50Registration({.name = "Q5_0",
                                                .ggml_type = 6,
                                                .block_size = 32,
                                                .block_bytes = 22,
                                                .dequantize = &dequantize_q5_0});

using Q50Entries = WholeNumbers<32, 16>;

void quantize_q5_0(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += 32, out += 22) {
    std::array<float, 32> weights, entries;
    error_weights(values, 32, importance, weights.data());
    const float d = fit_half<Q50Entries>(values, weights.data());
    put_half(d, out);
    Q50Entries::nearest(values, weights.data(), d, entries.data());
    std::array<uint8_t, 32> levels;
    for (size_t i = 0; i < 32; ++i) levels[i] = static_cast<uint8_t>(entries[i] + 16);
    put_five_bits(levels.data(), out + 2);
    if (importance != nullptr) importance += 32;
  }
}

const BlockQuantizerRegistration kQ50Quantizer({"q5_0", 6, &quantize_q5_0});

}  // namespace
}  // namespace vitrine::quant
