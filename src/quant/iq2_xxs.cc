// SPDX-License-Identifier: Apache-2.0
// The block format IQ2_XXS: a half d, then for each 32 values four indices of 8 bits, four times
// seven signs, and a 4-bit scale s; (d * (0.5 + s) * 0.25) * entry.
#include "block_quantizer.h"
#include "code_book_search.h"

namespace vitrine::quant {
namespace {

void dequantize_iq2_xxs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 66) {
    const float d = half_at(blocks);
    for (int64_t group = 0; group < 8; ++group) {
      const std::byte* indices = blocks + 2 + 8 * group;
      const uint32_t signs = word_at(indices + 4);
      const float scale = d * (0.5F + static_cast<float>(signs >> 28)) * 0.25F;
      for (int64_t i = 0; i < 4; ++i, out += 8) {
        write_signed(kernels::kIq2XxsBook[byte_at(indices, i)],
                     kernels::kSignPatterns[signs >> (7 * i) & 127], scale, out);
      }
    }
  }
}

const BlockFormatRegistration kIq2XxsRegistration({.name = "IQ2_XXS",
                                                   .ggml_type = 16,
                                                   .block_size = kSuperBlock,
                                                   .block_bytes = 66,
                                                   .dequantize = &dequantize_iq2_xxs});

struct Iq2XxsForm {
  static constexpr auto& kBook = kernels::kIq2XxsBook;
  static constexpr auto& kLevels = kIq2Magnitudes;
  static constexpr int64_t kWidth = 32;
  static constexpr float kStep = 0.125F;
  static constexpr bool kHasEvenSigns = true;
};
using Iq2XxsEntries = SignedEntries<Iq2XxsForm>;

void quantize_iq2_xxs(const float* values, int64_t num_blocks, const float* importance,
                      std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 66) {
    std::array<float, kSuperBlock> weights;
    error_weights(values, kSuperBlock, importance, weights.data());
    const ScaledBlock<Iq2XxsEntries> chosen =
        ScaleChooser<Iq2XxsEntries>(values, weights.data()).run();
    std::fill_n(out, 66, std::byte{0});
    put_half(chosen.d, out);
    for (size_t g = 0; g < 8; ++g) {
      const auto codes =
          Iq2XxsEntries::codes(values + 32 * g, weights.data() + 32 * g, chosen.scale(g));
      for (size_t i = 0; i < 4; ++i) {
        out[2 + 8 * g + i] = static_cast<std::byte>(codes.entries[i]);
      }
      put_signs_and_scale(codes.signs.data(), chosen.wholes[g], out + 6 + 8 * g);
    }
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kIq2XxsQuantizer({"iq2_xxs", 16, &quantize_iq2_xxs});

}  // namespace
}  // namespace vitrine::quant
