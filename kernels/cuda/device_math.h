// SPDX-License-Identifier: Apache-2.0
// The CPU kernels' transcendental functions on the device: the same operations, the same bits
// (docs/numerics.md, "exp, sigmoid, silu").
#pragma once

#include "kernels/cpu/exp_constants.h"
#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {

/// p * 2^exponent, rounded once: two factors, so that the first product is exact (denormals).
VITRINE_DEVICE float scale_by_power(float p, int32_t exponent) {
  const int32_t half = exponent >> 1;
  const float scaled = p * bits_float(static_cast<uint32_t>(half + 127) << 23);
  return scaled * bits_float(static_cast<uint32_t>(exponent - half + 127) << 23);
}

VITRINE_DEVICE float exp_float(float x) {
  if (x != x) return x;
  x = kExpHigh < x ? kExpHigh : x;
  x = kExpLow > x ? kExpLow : x;
  const float n = fma_rn(x, kLog2E, kRoundMagic) - kRoundMagic;
  float r = fma_rn(n, -kLn2High, x);
  r = fma_rn(n, -kLn2Low, r);
  float p = fma_rn(kExpC6, r, kExpC5);
  p = fma_rn(p, r, kExpC4);
  p = fma_rn(p, r, kExpC3);
  p = fma_rn(p, r, kExpC2);
  p = fma_rn(p, r, 1.0f);
  p = fma_rn(p, r, 1.0f);
  return scale_by_power(p, static_cast<int32_t>(n));
}

VITRINE_DEVICE float silu(float x) { return x / (1.0f + exp_float(-x)); }

}  // namespace vitrine::kernels::cuda
