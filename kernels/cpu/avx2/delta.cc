// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet of the AVX2 table: vectors of 8, since eight chains of 16 lanes fill all
// registers.
#include "../delta.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

struct Table {
  using Lanes = __m256;
  static constexpr int kWidth = 8;
  VITRINE_INLINE Lanes load(const float* x) { return _mm256_loadu_ps(x); }
  VITRINE_INLINE Lanes load(const float* x, int64_t n) {
    return _mm256_maskload_ps(x, first_lanes_8(n));
  }
  VITRINE_INLINE void store(float* x, Lanes v) { _mm256_storeu_ps(x, v); }
  VITRINE_INLINE void store(float* x, Lanes v, int64_t n) {
    _mm256_maskstore_ps(x, first_lanes_8(n), v);
  }
  VITRINE_INLINE Lanes set(float x) { return _mm256_set1_ps(x); }
  VITRINE_INLINE Lanes add(Lanes a, Lanes b) { return _mm256_add_ps(a, b); }
  VITRINE_INLINE Lanes sub(Lanes a, Lanes b) { return _mm256_sub_ps(a, b); }
  VITRINE_INLINE Lanes mul(Lanes a, Lanes b) { return _mm256_mul_ps(a, b); }
  VITRINE_INLINE Lanes div(Lanes a, Lanes b) { return _mm256_div_ps(a, b); }
  VITRINE_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm256_fmadd_ps(a, b, c); }
  VITRINE_INLINE Lanes max(Lanes a, Lanes b) { return _mm256_max_ps(a, b); }
  VITRINE_INLINE Lanes exp(Lanes x) { return exp_8(x); }
};

}  // namespace

constinit const DeltaKernels kDeltaKernels = make_delta_kernels<Table>();

}  // namespace vitrine::kernels::avx2
