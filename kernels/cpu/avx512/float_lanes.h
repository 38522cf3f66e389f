// SPDX-License-Identifier: Apache-2.0
// Sixteen floats for templates that take an instruction set's vectors.
#pragma once

#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

struct FloatLanes {
  using Lanes = __m512;
  VITRINE_INLINE Lanes load(const float* x) { return _mm512_loadu_ps(x); }
  VITRINE_INLINE void store(float* x, Lanes v) { _mm512_storeu_ps(x, v); }
  VITRINE_INLINE Lanes set(float x) { return _mm512_set1_ps(x); }
  VITRINE_INLINE Lanes add(Lanes a, Lanes b) { return _mm512_add_ps(a, b); }
  VITRINE_INLINE Lanes sub(Lanes a, Lanes b) { return _mm512_sub_ps(a, b); }
  VITRINE_INLINE Lanes mul(Lanes a, Lanes b) { return _mm512_mul_ps(a, b); }
  VITRINE_INLINE Lanes div(Lanes a, Lanes b) { return _mm512_div_ps(a, b); }
  VITRINE_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
  VITRINE_INLINE Lanes max(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
  VITRINE_INLINE Lanes exp(Lanes x) { return exp_lanes(x); }
};

}  // namespace
}  // namespace vitrine::kernels::avx512
