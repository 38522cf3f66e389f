// SPDX-License-Identifier: Apache-2.0
// The block format IQ4_XS: a half d, eight 6-bit scales s (two high bits each, then nibbles), then
// 256 nibbles that index sixteen values; (d * (s - 32)) * value.
#include "block_format.h"
#include "block_quantizer.h"
#include "nonlinear_search.h"

namespace vitrine::quant {
namespace {

void dequantize_iq4_xs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 136) {
    const float d = half_at(blocks);
    const uint32_t high_bits = byte_at(blocks, 2) | byte_at(blocks, 3) << 8;
    for (int64_t group = 0; group < 8; ++group, out += 32) {
      const uint32_t low = byte_at(blocks, 4 + group / 2) >> (group % 2 * 4) & 15;
      const uint32_t six_bits = low | (high_bits >> (2 * group) & 3) << 4;
      const float scale = d * static_cast<float>(static_cast<int>(six_bits) - 32);
      for (int64_t i = 0; i < 16; ++i) {
        const uint32_t pair = byte_at(blocks, 8 + 16 * group + i);
        out[i] = scale * kNonlinearValues[pair & 15];
        out[16 + i] = scale * kNonlinearValues[pair >> 4];
      }
    }
  }
}

const BlockFormatRegistration kIq4XsRegistration({.name = "IQ4_XS",
                                                  .ggml_type = 23,
                                                  .block_size = kSuperBlock,
                                                  .block_bytes = 136,
                                                  .dequantize = &dequantize_iq4_xs});

using Iq4XsBook = WithWholeScales<NonlinearEntries, 32>;

void quantize_iq4_xs(const float* values, int64_t num_blocks, const float* importance,
                     std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 136) {
    std::array<float, kSuperBlock> weights;
    error_weights(values, kSuperBlock, importance, weights.data());
    const ScaledBlock<Iq4XsBook> chosen = ScaleChooser<Iq4XsBook>(values, weights.data()).run();
    put_half(chosen.d, out);
    int high_bits = 0;
    std::array<int, 4> low_bits{};
    for (size_t g = 0; g < 8; ++g) {
      const int whole = chosen.wholes[g] + 32;
      high_bits |= whole >> 4 << (2 * g);
      low_bits[g / 2] |= (whole & 15) << (g % 2 * 4);
      NonlinearEntries::put(values + 32 * g, chosen.scale(g), out + 8 + 16 * g);
    }
    out[2] = static_cast<std::byte>(high_bits & 255);
    out[3] = static_cast<std::byte>(high_bits >> 8);
    for (size_t i = 0; i < low_bits.size(); ++i) out[4 + i] = static_cast<std::byte>(low_bits[i]);
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kIq4XsQuantizer({"iq4_xs", 23, &quantize_iq4_xs});

}  // namespace
}  // namespace vitrine::quant
