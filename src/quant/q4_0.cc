// SPDX-License-Identifier: Apache-2.0
// The block format Q4_0: a half d, then 32 nibbles q (the low ones first); d * (q - 8).
#include "block_format.h"
#include "block_quantizer.h"
#include "scale_search.h"

namespace vitrine::quant {
namespace {

void dequantize_q4_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 18, out += 32) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 16; ++i) {
      const uint32_t pair = byte_at(blocks, 2 + i);
      out[i] = d * static_cast<float>(static_cast<int>(pair & 15) - 8);
      out[16 + i] = d * static_cast<float>(static_cast<int>(pair >> 4) - 8);
    }
  }
}

const BlockFormatRegistration kQ40Registration({.name = "Q4_0",
                                                .ggml_type = 2,
                                                .block_size = 32,
                                                .block_bytes = 18,
                                                .dequantize = &dequantize_q4_0});

using Q40Entries = WholeNumbers<32, 8>;

void quantize_q4_0(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += 32, out += 18) {
    std::array<float, 32> weights, entries;
    error_weights(values, 32, importance, weights.data());
    const float d = fit_half<Q40Entries>(values, weights.data());
    put_half(d, out);
    Q40Entries::nearest(values, weights.data(), d, entries.data());
    for (size_t i = 0; i < 16; ++i) {
      const int low = static_cast<int>(entries[i]) + 8;
      const int high = static_cast<int>(entries[16 + i]) + 8;
      out[2 + i] = static_cast<std::byte>(low | high << 4);
    }
    if (importance != nullptr) importance += 32;
  }
}

const BlockQuantizerRegistration kQ40Quantizer({"q4_0", 2, &quantize_q4_0});

}  // namespace
}  // namespace vitrine::quant
