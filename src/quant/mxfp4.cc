// SPDX-License-Identifier: Apache-2.0
// The block format MXFP4 (OCP Microscaling 1.0): an exponent e, then 32 nibbles of E2M1; the values
// here are doubled to be whole, so the scale is 2^(e - 128), which bfloat16 holds down to its
// subnormals.
#include "block_format.h"

namespace vitrine::quant {
namespace {

void dequantize_mxfp4(const std::byte* blocks, int64_t num_blocks, float* out) {
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 17, out += 32) {
    const uint32_t exponent = byte_at(blocks, 0);
    const uint32_t bits = exponent < 2 ? 0x20u << exponent : (exponent - 1) << 7;
    const float scale = bf16_to_float(static_cast<uint16_t>(bits));
    for (int64_t i = 0; i < 16; ++i) {
      const uint32_t pair = byte_at(blocks, 1 + i);
      out[i] = scale * kDoubledE2m1[pair & 15];
      out[16 + i] = scale * kDoubledE2m1[pair >> 4];
    }
  }
}

const BlockFormatRegistration kMxfp4Registration({.name = "MXFP4",
                                                  .ggml_type = 39,
                                                  .block_size = 32,
                                                  .block_bytes = 17,
                                                  .dequantize = &dequantize_mxfp4});

}  // namespace
}  // namespace vitrine::quant
