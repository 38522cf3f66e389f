// SPDX-License-Identifier: Apache-2.0
// The constants of this project's float32 exp; every instruction set evaluates the same formula.
#pragma once

#include <bit>
#include <cstdint>

namespace vitrine::kernels {

// exp(x) = 2^n * p(r), n = round(x / ln 2), r = x - n * ln 2; p(r) = 1 + r + r^2 * (c2 + c3*r + …).
inline constexpr float kExpHigh = 89.0f;   // every x above gives +inf
inline constexpr float kExpLow = -105.0f;  // every x below gives +0
inline constexpr float kLog2E = 0x1.715476p+0f;
inline constexpr float kRoundMagic = 0x1.8p+23f;  // adding it rounds half to even at 1
inline constexpr float kLn2High = 0x1.62e4p-1f;
inline constexpr float kLn2Low = 0x1.7f7d1cp-20f;
// Minimax fit on |r| <= ln(2) / 2, relative error 3.1e-9 before rounding.
inline constexpr float kExpC2 = 0x1.fffffcp-2f;
inline constexpr float kExpC3 = 0x1.555492p-3f;
inline constexpr float kExpC4 = 0x1.5558f2p-5f;
inline constexpr float kExpC5 = 0x1.123a2p-7f;
inline constexpr float kExpC6 = 0x1.6a23cep-10f;

// The output head's statistics take exp(x) of kExpStatisticsLow <= x <= 0: x * log2(e) = n + j / 8
// + f with |f| <= 1 / 16, exp(x) = 2^n * kExp2Table[j] * (1 + f * (d1 + f * (d2 + d3 * f))).
// Minimax fit of 2^f, relative error 2.7e-8 before rounding. Every x below counts as 0. Eight
// powers are one permutation of AVX2.
inline constexpr float kExpStatisticsLow = -87.0f;
inline constexpr float kRoundMagic8 = 0x1.8p+20f;  // adding it rounds half to even at 1 / 8
inline constexpr float kExp2D1 = 0x1.62e432p-1f;
inline constexpr float kExp2D2 = 0x1.ec0c42p-3f;
inline constexpr float kExp2D3 = 0x1.c6a002p-5f;
inline constexpr float kExp2Table[8] = {0x1.000000p+0f, 0x1.172b84p+0f, 0x1.306fe0p+0f,
                                        0x1.4bfdaep+0f, 0x1.6a09e6p+0f, 0x1.8ace54p+0f,
                                        0x1.ae89fap+0f, 0x1.d5818ep+0f};
/// The bits b of the sum kRoundMagic8 + x * log2(e) hold j in the low three and n above these:
/// kExp2Words[j] + (b << 20) are the bits of 2^n * kExp2Table[j].
struct Exp2Words {
  uint32_t at[8];
};
static constexpr Exp2Words make_exp2_words() {
  Exp2Words words{};
  for (uint32_t j = 0; j < 8; ++j) {
    words.at[j] = std::bit_cast<uint32_t>(kExp2Table[j]) - (j << 20);
  }
  return words;
}
alignas(32) inline constexpr Exp2Words kExp2Words = make_exp2_words();

}  // namespace vitrine::kernels
