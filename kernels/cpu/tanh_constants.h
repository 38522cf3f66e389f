// SPDX-License-Identifier: Apache-2.0
// The constants of this project's float32 tanh and of the gating by GELU; every instruction set
// evaluates the same formulas (docs/numerics.md).
#pragma once

namespace vitrine::kernels {

// tanh(x) = x + x * z * p(z) with z = x^2 where |x| is below the border (Cephes' polynomial), else
// 1 - 2 / (exp(2 |x|) + 1) with the sign of x.
inline constexpr float kTanhBorder = 0.625f;
inline constexpr float kTanhC0 = -3.33332819422e-1f;
inline constexpr float kTanhC1 = 1.33314422036e-1f;
inline constexpr float kTanhC2 = -5.37397155531e-2f;
inline constexpr float kTanhC3 = 2.06390887954e-2f;
inline constexpr float kTanhC4 = -5.70498872745e-3f;

// GELU by tanh (Hendrycks and Gimpel 2016) is g * sigma(2 sqrt(2 / pi) (g + 0.044715 g^3)).
inline constexpr float kGeluCubic = 0.044715f;
inline constexpr float kGeluFactor = 1.5957691216057308f;

}  // namespace vitrine::kernels
