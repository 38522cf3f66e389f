// SPDX-License-Identifier: Apache-2.0
// The block format IQ3_S: a half d, the low 8 bits of 64 indices, their high bits, 32 bytes of
// signs, then 8 4-bit scales s; (d * (1 + 2 * s)) * entry.
#include "block_quantizer.h"
#include "code_book_search.h"

namespace vitrine::quant {
namespace {

void dequantize_iq3_s(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 110) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i, out += 8) {
      const uint32_t high = byte_at(blocks, 66 + i / 4) >> (i % 4 * 2);
      const uint32_t s = byte_at(blocks, 106 + i / 8) >> (i % 8 / 4 * 4) & 15;
      const uint64_t first = kernels::kIq3SBook[byte_at(blocks, 2 + 2 * i) | (high & 1) << 8];
      const uint64_t second = kernels::kIq3SBook[byte_at(blocks, 3 + 2 * i) | (high & 2) << 7];
      write_signed(first | second << 32, byte_at(blocks, 74 + i), d * static_cast<float>(1 + 2 * s),
                   out);
    }
  }
}

const BlockFormatRegistration kIq3SRegistration({.name = "IQ3_S",
                                                 .ggml_type = 21,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 110,
                                                 .dequantize = &dequantize_iq3_s});

struct Iq3SForm {
  static constexpr auto& kBook = kernels::kIq3SBook;
  static constexpr auto& kLevels = kernels::kIq3SLevels;
  static constexpr int64_t kWidth = 32;
  static constexpr float kStep = 1;
  static constexpr bool kHasEvenSigns = false;
};
using Iq3SEntries = SignedEntries<Iq3SForm>;

void quantize_iq3_s(const float* values, int64_t num_blocks, const float* importance,
                    std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += kSuperBlock, out += 110) {
    std::array<float, kSuperBlock> weights;
    error_weights(values, kSuperBlock, importance, weights.data());
    const ScaledBlock<Iq3SEntries> chosen = ScaleChooser<Iq3SEntries>(values, weights.data()).run();
    std::fill_n(out, 110, std::byte{0});
    put_half(chosen.d, out);
    for (size_t g = 0; g < 8; ++g) {
      const auto codes =
          Iq3SEntries::codes(values + 32 * g, weights.data() + 32 * g, chosen.scale(g));
      for (size_t i = 0; i < 8; ++i) {
        out[2 + 8 * g + i] = static_cast<std::byte>(codes.entries[i] & 255);
        out[66 + g] |= static_cast<std::byte>(codes.entries[i] >> 8 << i);
      }
      for (size_t i = 0; i < 4; ++i) out[74 + 4 * g + i] = static_cast<std::byte>(codes.signs[i]);
      out[106 + g / 2] |= static_cast<std::byte>(chosen.wholes[g] << (g % 2 * 4));
    }
    if (importance != nullptr) importance += kSuperBlock;
  }
}

const BlockQuantizerRegistration kIq3SQuantizer({"iq3_s", 21, &quantize_iq3_s});

}  // namespace
}  // namespace vitrine::quant
