// SPDX-License-Identifier: Apache-2.0
// The block format TQ1_0: 52 bytes of ternary digits t, a half d; (t - 1) * d. A byte is a fraction
// of 256 whose first five ternary digits are five values, the last four bytes hold four. Values
// that neighbour have the same digit of neighbouring bytes: of 32, then of 16, then of 4.
#include "block_format.h"

namespace vitrine::quant {
namespace {

/// Returns ternary digit number `digit` of the fraction byte / 256.
uint32_t ternary_digit(uint32_t byte, int64_t digit) {
  constexpr uint32_t kPowers[5] = {1, 3, 9, 27, 81};
  return (byte * kPowers[digit] & 255) * 3 >> 8;
}

void dequantize_tq1_0(const std::byte* blocks, int64_t num_blocks, float* out) {
  struct Run {
    int64_t first_byte, num_bytes, num_digits;
  };
  constexpr Run kRuns[] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
  for (int64_t block = 0; block < num_blocks; ++block, blocks += 54) {
    const float d = half_at(blocks + 52);
    for (const Run& run : kRuns) {
      for (int64_t digit = 0; digit < run.num_digits; ++digit) {
        for (int64_t i = 0; i < run.num_bytes; ++i) {
          const uint32_t t = ternary_digit(byte_at(blocks, run.first_byte + i), digit);
          *out++ = static_cast<float>(static_cast<int>(t) - 1) * d;
        }
      }
    }
  }
}

const BlockFormatRegistration kTq10Registration({.name = "TQ1_0",
                                                 .ggml_type = 34,
                                                 .block_size = kSuperBlock,
                                                 .block_bytes = 54,
                                                 .dequantize = &dequantize_tq1_0});

}  // namespace
}  // namespace vitrine::quant
