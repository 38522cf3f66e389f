// SPDX-License-Identifier: Apache-2.0
// The block format IQ2_XS: a half d, 32 times an index of 9 bits and seven signs, then 16 4-bit
// scales s; (d * (0.5 + s) * 0.25) * entry.
#include "block_quantizer.h"
#include "code_book_search.h"

namespace vitrine::quant {
namespace {

void dequantize_iq2_xs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 74) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t index_and_signs = short_at(blocks + 2 + 2 * i);
      const uint32_t s = byte_at(blocks, 66 + i / 4) >> (i % 4 / 2 * 4) & 15;
      write_signed(kernels::kIq2XsBook[index_and_signs & 511],
                   kernels::kSignPatterns[index_and_signs >> 9],
                   d * (0.5F + static_cast<float>(s)) * 0.25F, out);
    }
  }
}

const BlockFormatRegistration kIq2XsRegistration({.name = "IQ2_XS",
                                                  .ggml_type = 17,
                                                  .block_size = kSuperBlock,
                                                  .block_bytes = 74,
                                                  .dequantize = &dequantize_iq2_xs});

struct Iq2XsForm {
  static constexpr auto& kBook = kernels::kIq2XsBook;
  static constexpr auto& kLevels = kIq2Magnitudes;
  static constexpr int64_t kWidth = 16;
  static constexpr float kStep = 0.125F;
  static constexpr bool kHasEvenSigns = true;
};
using Iq2XsEntries = SignedEntries<Iq2XsForm>;

void quantize_iq2_xs(const float* values, int64_t num_blocks, const float* importance,
                     std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 74) {
    std::array<float, kSuperBlock> weights;
    error_weights(values, kSuperBlock, importance, weights.data());
    const ScaledBlock<Iq2XsEntries> chosen =
        ScaleChooser<Iq2XsEntries>(values, weights.data()).run();
    std::fill_n(out, 74, std::byte{0});
    put_half(chosen.d, out);
    for (size_t g = 0; g < 16; ++g) {
      const auto codes =
          Iq2XsEntries::codes(values + 16 * g, weights.data() + 16 * g, chosen.scale(g));
      for (size_t i = 0; i < 2; ++i) {
        const int both = codes.entries[i] | (codes.signs[i] & 127) << 9;
        out[2 + 4 * g + 2 * i] = static_cast<std::byte>(both & 255);
        out[3 + 4 * g + 2 * i] = static_cast<std::byte>(both >> 8);
      }
      out[66 + g / 2] |= static_cast<std::byte>(chosen.wholes[g] << (g % 2 * 4));
    }
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kIq2XsQuantizer({"iq2_xs", 17, &quantize_iq2_xs});

}  // namespace
}  // namespace vitrine::quant
