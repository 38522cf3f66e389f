// SPDX-License-Identifier: Apache-2.0
// The block format IQ4_NL: a half d, then 32 nibbles that index sixteen values; d * value.
#include "block_format.h"
#include "block_quantizer.h"
#include "nonlinear_search.h"

namespace vitrine::quant {
namespace {

void dequantize_iq4_nl(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 18, out += 32) {
    const float d = half_at(blocks);
    for (int64_t i = 0; i < 16; ++i) {
      const uint32_t pair = byte_at(blocks, 2 + i);
      out[i] = d * kNonlinearValues[pair & 15];
      out[16 + i] = d * kNonlinearValues[pair >> 4];
    }
  }
}

const BlockFormatRegistration kIq4NlRegistration({.name = "IQ4_NL",
                                                  .ggml_type = 20,
                                                  .block_size = 32,
                                                  .block_bytes = 18,
                                                  .dequantize = &dequantize_iq4_nl});

void quantize_iq4_nl(const float* values, int64_t num_blocks, const float* importance,
                     std::byte* out) {
  for (int64_t block = 0; block < num_blocks; ++block, values += 32, out += 18) {
    std::array<float, 32> weights;
    error_weights(values, 32, importance, weights.data());
    const float d = fit_half<NonlinearEntries>(values, weights.data());
    put_half(d, out);
    NonlinearEntries::put(values, d, out + 2);
    if (importance != nullptr) importance += 32;
  }
}

const BlockQuantizerRegistration kIq4NlQuantizer({"iq4_nl", 20, &quantize_iq4_nl});

}  // namespace
}  // namespace vitrine::quant
