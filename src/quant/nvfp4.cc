// SPDX-License-Identifier: Apache-2.0
// The block format NVFP4: four scales of 16 values each, in E4M3 without a sign, then 64 nibbles of
// E2M1, the first eight of a group in its low nibbles; scale * value. The values here are doubled
// to be whole and the scales halved, as in llama.cpp: 0x7f, which is NaN in E4M3, is 0, and a sign
// bit is not looked at. The scale of the whole matrix is a tensor of its own (NAME.scale).
#include "block_format.h"

namespace vitrine::quant {
namespace {

float half_of_unsigned_e4m3(uint32_t bits) {
  if (bits == 0x7f) return 0.0F;
  const uint32_t exponent = bits >> 3 & 15, mantissa = bits & 7;
  const uint32_t whole = exponent == 0 ? mantissa : (8 + mantissa) << (exponent - 1);
  return static_cast<float>(whole) * 0x1p-10F;
}

void dequantize_nvfp4(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 36) {
    for (int64_t group = 0; group < 4; ++group, out += 16) {
      const float scale = half_of_unsigned_e4m3(byte_at(blocks, group));
      for (int64_t i = 0; i < 8; ++i) {
        const uint32_t pair = byte_at(blocks, 4 + 8 * group + i);
        out[i] = kDoubledE2m1[pair & 15] * scale;
        out[8 + i] = kDoubledE2m1[pair >> 4] * scale;
      }
    }
  }
}

const BlockFormatRegistration kNvfp4Registration({.name = "NVFP4",
                                                  .ggml_type = 40,
                                                  .block_size = 64,
                                                  .block_bytes = 36,
                                                  .dequantize = &dequantize_nvfp4});

}  // namespace
}  // namespace vitrine::quant
