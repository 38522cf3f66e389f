// SPDX-License-Identifier: Apache-2.0
// The block format IQ3_XXS: a half d, 64 indices of 8 bits, then for each 32 values four times
// seven signs and a 4-bit scale s; (d * (0.5 + s) * 0.5) * entry.
#include "block_quantizer.h"
#include "code_book_search.h"

namespace vitrine::quant {
namespace {

void dequantize_iq3_xxs(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 98) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t signs = word_at(blocks + 66 + i / 4 * 4);
      const uint64_t first = kernels::kIq3XxsBook[byte_at(blocks, 2 + 2 * i)];
      const uint64_t second = kernels::kIq3XxsBook[byte_at(blocks, 3 + 2 * i)];
      write_signed(first | second << 32, kernels::kSignPatterns[signs >> (i % 4 * 7) & 127],
                   d * (0.5F + static_cast<float>(signs >> 28)) * 0.5F, out);
    }
  }
}

const BlockFormatRegistration kIq3XxsRegistration({.name = "IQ3_XXS",
                                                   .ggml_type = 18,
                                                   .block_size = kSuperBlock,
                                                   .block_bytes = 98,
                                                   .dequantize = &dequantize_iq3_xxs});

struct Iq3XxsForm {
  static constexpr auto& kBook = kernels::kIq3XxsBook;
  static constexpr auto& kLevels = kernels::kIq3XxsLevels;
  static constexpr int64_t kWidth = 32;
  static constexpr float kStep = 0.25F;
  static constexpr bool kHasEvenSigns = true;
};
using Iq3XxsEntries = SignedEntries<Iq3XxsForm>;

void quantize_iq3_xxs(const float* values, int64_t num_blocks, const float* importance,
                      std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 98) {
    std::array<float, kSuperBlock> weights;
    error_weights(values, kSuperBlock, importance, weights.data());
    const ScaledBlock<Iq3XxsEntries> chosen =
        ScaleChooser<Iq3XxsEntries>(values, weights.data()).run();
    std::fill_n(out, 98, std::byte{0});
    put_half(chosen.d, out);
    for (size_t g = 0; g < 8; ++g) {
      const auto codes =
          Iq3XxsEntries::codes(values + 32 * g, weights.data() + 32 * g, chosen.scale(g));
      for (size_t i = 0; i < 8; ++i) {
        out[2 + 8 * g + i] = static_cast<std::byte>(codes.entries[i]);
      }
      put_signs_and_scale(codes.signs.data(), chosen.wholes[g], out + 66 + 4 * g);
    }
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kIq3XxsQuantizer({"iq3_xxs", 18, &quantize_iq3_xxs});

}  // namespace
}  // namespace vitrine::quant
