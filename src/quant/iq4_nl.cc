// The block format IQ4_NL: a half d, then 32 nibbles that index sixteen values; d * value.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void split(const std::byte* blocks, int64_t num_blocks, int8_t* values, float* scales) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 18, values += 32) {
    scales[block] = half_at(blocks);
    for (int64_t i = 0; i < 16; ++i) {
      const uint32_t pair = byte_at(blocks, 2 + i);
      values[i] = kNonlinearValues[pair & 15];
      values[16 + i] = kNonlinearValues[pair >> 4];
    }
  }
}

const BlockFormatRegistration kRegistration({.name = "IQ4_NL",
                                             .ggml_type = 20,
                                             .block_size = 32,
                                             .block_bytes = 18,
                                             .group_bits = 8,
                                             .scale_dtype = DType::kF16,
                                             .split = &split});

}  // namespace
}  // namespace vitrine::quant
