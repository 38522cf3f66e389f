// The constants of this project's float32 exp; every instruction set evaluates the same formula.
#pragma once

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

// Of the output head's statistics, x <= 0: exp(x) = 2^n * q(f), n = round(x * log2(e)),
// f = x * log2(e) - n; q(f) = 1 + f * (d1 + d2*f + …). Minimax fit on |f| <= 0.5, relative error
// 9.4e-8 before rounding.
inline constexpr float kExp2D1 = 0x1.62e42ap-1f;
inline constexpr float kExp2D2 = 0x1.ebf9c2p-3f;
inline constexpr float kExp2D3 = 0x1.c6b6d8p-5f;
inline constexpr float kExp2D4 = 0x1.3ce8b6p-7f;
inline constexpr float kExp2D5 = 0x1.5bdae6p-10f;

}  // namespace vitrine::kernels
