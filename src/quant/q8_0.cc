// The block format Q8_0: a half d, then 32 signed bytes q; d * q.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void split(const std::byte* blocks, int64_t num_blocks, int8_t* values, float* scales) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 34, values += 32) {
    scales[block] = half_at(blocks);
    std::memcpy(values, blocks + 2, 32);
  }
}

const BlockFormatRegistration kRegistration({.name = "Q8_0",
                                             .ggml_type = 8,
                                             .block_size = 32,
                                             .block_bytes = 34,
                                             .group_bits = 8,
                                             .scale_dtype = DType::kF16,
                                             .split = &split});

}  // namespace
}  // namespace vitrine::quant
