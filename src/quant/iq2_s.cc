// SPDX-License-Identifier: Apache-2.0
// The block format IQ2_S: a half d, the low 8 bits of 32 indices, 32 bytes of signs, the high 2
// bits of the indices, then 16 4-bit scales s; (d * (0.5 + s) * 0.25) * entry.
#include "block_quantizer.h"
#include "code_book_search.h"

namespace vitrine::quant {
namespace {

void dequantize_iq2_s(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 82) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t high = byte_at(blocks, 66 + i / 4) >> (i % 4 * 2) & 3;
      const uint32_t s = byte_at(blocks, 74 + i / 4) >> (i % 4 / 2 * 4) & 15;
      write_signed(kernels::kIq2SBook[byte_at(blocks, 2 + i) | high << 8], byte_at(blocks, 34 + i),
                   d * (0.5F + static_cast<float>(s)) * 0.25F, out);
    }
  }
}

const BlockFormatRegistration kIq2SRegistration({.name = "IQ2_S",
                                                 .ggml_type = 22,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 82,
                                                 .dequantize = &dequantize_iq2_s});

struct Iq2SForm {
  static constexpr auto& kBook = kernels::kIq2SBook;
  static constexpr auto& kLevels = kIq2Magnitudes;
  static constexpr int64_t kWidth = 16;
  static constexpr float kStep = 0.125F;
  static constexpr bool kHasEvenSigns = false;
};
using Iq2SEntries = SignedEntries<Iq2SForm>;

void quantize_iq2_s(const float* values, int64_t num_blocks, const float* importance,
                    std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 82) {
    std::array<float, kSuperBlock> weights;
    error_weights(values, kSuperBlock, importance, weights.data());
    const ScaledBlock<Iq2SEntries> chosen = ScaleChooser<Iq2SEntries>(values, weights.data()).run();
    std::fill_n(out, 82, std::byte{0});
    put_half(chosen.d, out);
    for (size_t g = 0; g < 16; ++g) {
      const auto codes =
          Iq2SEntries::codes(values + 16 * g, weights.data() + 16 * g, chosen.scale(g));
      for (size_t i = 0; i < 2; ++i) {
        out[2 + 2 * g + i] = static_cast<std::byte>(codes.entries[i] & 255);
        out[34 + 2 * g + i] = static_cast<std::byte>(codes.signs[i]);
        out[66 + g / 2] |= static_cast<std::byte>(codes.entries[i] >> 8 << (g % 2 * 4 + 2 * i));
      }
      out[74 + g / 2] |= static_cast<std::byte>(chosen.wholes[g] << (g % 2 * 4));
    }
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kIq2SQuantizer({"iq2_s", 22, &quantize_iq2_s});

}  // namespace
}  // namespace vitrine::quant
