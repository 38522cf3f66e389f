// SPDX-License-Identifier: Apache-2.0
// The block format Q8_0: a half d, then 32 signed bytes q; d * q.
#include "block_format.h"
#include "block_quantizer.h"
#include "block_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q8_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 34, out += 32) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 32; ++i) {
      out[i] = d * static_cast<float>(static_cast<int8_t>(byte_at(blocks, 2 + i)));
    }
  }
}

const BlockFormatRegistration kQ80Registration({.name = "Q8_0",
                                                .ggml_type = 8,
                                                .block_size = 32,
                                                .block_bytes = 34,
                                                .dequantize = &dequantize_q8_0});

/// As llama.cpp does it: the largest magnitude becomes 127, halves are rounded away from 0.
void quantize_q8_0(const float* values, int64_t num_blocks, const float*, std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += 32, out += 34) {
    float largest = 0;
    for (int64_t i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float d = largest / 127;
    const float inverse = d == 0 ? 0 : 1 / d;
    put_half(d, out);
    for (int64_t i = 0; i < 32; ++i) {
      const auto q = static_cast<int8_t>(std::round(values[i] * inverse));
      out[2 + i] = static_cast<std::byte>(q);
    }
  }
}

const BlockQuantizerRegistration kQ80Quantizer({"q8_0", 8, &quantize_q8_0});

}  // namespace
}  // namespace vitrine::quant
