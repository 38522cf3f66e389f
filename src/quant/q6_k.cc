// SPDX-License-Identifier: Apache-2.0
// The block format Q6_K: 256 nibbles, 256 high pairs of bits, 16 signed scales s, a half d;
// (d * s) * (q - 32).
#include "block_format.h"
#include "block_quantizer.h"
#include "scale_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q6_k(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 210, out += kSuperBlock) {
    const float d = half_at(blocks + 208);
    for (int64_t i = 0; i < kSuperBlock; ++i) {
      const auto s = static_cast<int8_t>(byte_at(blocks, 192 + i / 16));
      const float scale = d * static_cast<float>(s);
      // The first 64 of 128 values are the low nibbles of 64 bytes.
      const uint32_t low = byte_at(blocks, i / 128 * 64 + i % 64) >> (i % 128 / 64 * 4) & 15;
      const uint32_t high = byte_at(blocks, 128 + i / 128 * 32 + i % 32) >> (i % 128 / 32 * 2) & 3;
      out[i] = scale * static_cast<float>(static_cast<int>(low | high << 4) - 32);
    }
  }
}

const BlockFormatRegistration kQ6KRegistration({.name = "Q6_K",
                                                .ggml_type = 14,
                                                .block_size = kSuperBlock,
                                                .block_bytes = 210,
                                                .dequantize = &dequantize_q6_k});

using Q6KBook = WithWholeScales<WholeNumbers<16, 32>, 128>;

void quantize_q6_k(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 210) {
    std::array<float, kSuperBlock> weights, entries;
    // With so many levels importance alone does better than with sizes.
    if (importance != nullptr) {
      std::copy_n(importance, kSuperBlock, weights.begin());
    } else {
      error_weights(values, kSuperBlock, nullptr, weights.data());
    }
    const ScaledBlock<Q6KBook> chosen = ScaleChooser<Q6KBook>(values, weights.data()).run();
    for (size_t g = 0; g < 16; ++g) {
      out[192 + g] = static_cast<std::byte>(static_cast<int8_t>(chosen.wholes[g]));
      Q6KBook::nearest(values + 16 * g, nullptr, chosen.scale(g), entries.data() + 16 * g);
    }
    std::array<int, kSuperBlock> levels;
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = static_cast<int>(entries[i]) + 32;
    for (size_t i = 0; i < 128; ++i) {
      const size_t first = i / 64 * 128 + i % 64;
      out[i] = static_cast<std::byte>((levels[first] & 15) | (levels[first + 64] & 15) << 4);
    }
    for (size_t i = 0; i < 64; ++i) {
      const size_t first = i / 32 * 128 + i % 32;
      int high = 0;
      for (size_t part = 0; part < 4; ++part) high |= levels[first + 32 * part] >> 4 << (2 * part);
      out[128 + i] = static_cast<std::byte>(high);
    }
    put_half(chosen.d, out + 208);
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kQ6KQuantizer({"q6_k", 14, &quantize_q6_k});

}  // namespace
}  // namespace vitrine::quant
