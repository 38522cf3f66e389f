// The block format IQ4_XS: a half d, eight 6-bit scales s (two high bits each, then nibbles), then
// 256 nibbles that index sixteen values; (d * (s - 32)) * value.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void split(const std::byte* blocks, int64_t num_blocks, int8_t* values, float* scales) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 136) {
    const float d = half_at(blocks);
    const uint32_t high_bits = byte_at(blocks, 2) | byte_at(blocks, 3) << 8;
    for (int64_t group = 0; group < 8; ++group, values += 32) {
      const uint32_t low = byte_at(blocks, 4 + group / 2) >> (group % 2 * 4) & 15;
      const uint32_t scale = low | (high_bits >> (2 * group) & 3) << 4;
      *scales++ = d * static_cast<float>(static_cast<int>(scale) - 32);
      for (int64_t i = 0; i < 16; ++i) {
        const uint32_t pair = byte_at(blocks, 8 + 16 * group + i);
        values[i] = kNonlinearValues[pair & 15];
        values[16 + i] = kNonlinearValues[pair >> 4];
      }
    }
  }
}

const BlockFormatRegistration kRegistration({.name = "IQ4_XS",
                                             .ggml_type = 23,
                                             .block_size = kSuperBlock,
                                             .block_bytes = 136,
                                             .group_bits = 8,
                                             .scale_dtype = DType::kF32,
                                             .split = &split});

}  // namespace
}  // namespace vitrine::quant
