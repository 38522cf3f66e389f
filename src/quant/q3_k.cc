// SPDX-License-Identifier: Apache-2.0
// The block format Q3_K: 256 high bits h, 256 2-bit q, 16 6-bit scales s in 12 bytes, a half d;
// (d * (s - 32)) * (q - 4 * !h).
#include "block_format.h"
#include "block_quantizer.h"
#include "scale_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q3_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 110, out += kSuperBlock) {
    const float d = half_at(blocks + 108);
    const std::byte* scales = blocks + 96;
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const int64_t group = i / 16;
      const uint32_t low = byte_at(scales, group % 8) >> (group / 8 * 4) & 15;
      const uint32_t high = byte_at(scales, 8 + group % 4) >> (group / 4 * 2) & 3;
      const float scale = d * static_cast<float>(static_cast<int>(low | high << 4) - 32);
      const uint32_t q = byte_at(blocks, 32 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
      const uint32_t bit = byte_at(blocks, i % 32) >> (i / 32) & 1;
      out[i] = scale * static_cast<float>(static_cast<int>(q) - (bit == 0 ? 4 : 0));
    }
  }
}

const BlockFormatRegistration kQ3KRegistration({.name = "Q3_K",
                                                .ggml_type = 11,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 110,
                                                .dequantize = &dequantize_q3_k});

using Q3KBook = WithWholeScales<WholeNumbers<16, 4>, 32>;

void quantize_q3_k(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 110) {
    std::array<float, kSuperBlock> weights, entries;
    error_weights(values, kSuperBlock, importance, weights.data());
    const ScaledBlock<Q3KBook> chosen = ScaleChooser<Q3KBook>(values, weights.data()).run();
    std::array<uint8_t, 12> scales{};
    for (size_t g = 0; g < 16; ++g) {
      Q3KBook::nearest(values + 16 * g, nullptr, chosen.scale(g), entries.data() + 16 * g);
      const int whole = chosen.wholes[g] + 32;
      scales[g % 8] = static_cast<uint8_t>(scales[g % 8] | (whole & 15) << (g / 8 * 4));
      scales[8 + g % 4] = static_cast<uint8_t>(scales[8 + g % 4] | whole >> 4 << (g / 4 * 2));
    }
    std::array<uint8_t, kSuperBlock> levels;  // the lowest two bits; the third is the high bit
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<uint8_t>(entries[i] + 4);
    for (size_t i = 0; i < 32; ++i) {
      int bits = 0;
      for (size_t part = 0; part < 8; ++part) bits |= levels[32 * part + i] >> 2 << part;
      out[i] = static_cast<std::byte>(bits);
    }
    put_two_bits(levels.data(), out + 32);
    for (size_t i = 0; i < scales.size(); ++i) out[96 + i] = static_cast<std::byte>(scales[i]);
    put_half(chosen.d, out + 108);
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kQ3KQuantizer({"q3_k", 11, &quantize_q3_k});

}  // namespace
}  // namespace vitrine::quant
