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

// Of the output head's statistics, kExpStatisticsLow <= x <= 0: x * log2(e) = n + j / 32 + f with
// |f| <= 1 / 64, exp(x) = 2^n * kExp2Table[j] * (1 + f * (d1 + d2 * f)). Minimax fit of 2^f,
// relative error 5.4e-8 before rounding. Every x below counts as 0.
inline constexpr float kExpStatisticsLow = -87.0f;
inline constexpr float kRoundMagic32 = 0x1.8p+18f;  // adding it rounds half to even at 1 / 32
inline constexpr float kExp2D1 = 0x1.62e584p-1f;
inline constexpr float kExp2D2 = 0x1.ebfbdep-3f;
inline constexpr float kExp2Table[32] = {
    0x1.000000p+0f, 0x1.059b0ep+0f, 0x1.0b5586p+0f, 0x1.11301ep+0f, 0x1.172b84p+0f, 0x1.1d4874p+0f,
    0x1.2387a6p+0f, 0x1.29e9e0p+0f, 0x1.306fe0p+0f, 0x1.371a74p+0f, 0x1.3dea64p+0f, 0x1.44e086p+0f,
    0x1.4bfdaep+0f, 0x1.5342b6p+0f, 0x1.5ab07ep+0f, 0x1.6247ecp+0f, 0x1.6a09e6p+0f, 0x1.71f75ep+0f,
    0x1.7a1148p+0f, 0x1.82589ap+0f, 0x1.8ace54p+0f, 0x1.93737cp+0f, 0x1.9c4918p+0f, 0x1.a5503cp+0f,
    0x1.ae89fap+0f, 0x1.b7f770p+0f, 0x1.c199bep+0f, 0x1.cb720ep+0f, 0x1.d5818ep+0f, 0x1.dfc974p+0f,
    0x1.ea4afap+0f, 0x1.f50766p+0f};
/// Of the sum's bits b = kRoundMagic32 + x * log2(e), the low five are j and what is above them is
/// n: kExp2Words[j] + (b << 18) are the bits of 2^n * kExp2Table[j].
struct Exp2Words {
  uint32_t at[32];
};
static constexpr Exp2Words make_exp2_words() {
  Exp2Words words{};
  for (uint32_t j = 0; j < 32; ++j) {
    words.at[j] = std::bit_cast<uint32_t>(kExp2Table[j]) - (j << 18);
  }
  return words;
}
alignas(64) inline constexpr Exp2Words kExp2Words = make_exp2_words();

}  // namespace vitrine::kernels
