// SPDX-License-Identifier: Apache-2.0
// Gated DeltaNet of the AVX-512 table.
#include "../delta.h"
#include "float_lanes.h"

namespace vitrine::kernels::avx512 {
namespace {

struct Table : FloatLanes {
  static constexpr int kWidth = 16;
  using FloatLanes::load, FloatLanes::store;
  VITRINE_INLINE Lanes load(const float* x, int64_t n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), x);
  }
  VITRINE_INLINE void store(float* x, Lanes v, int64_t n) {
    _mm512_mask_storeu_ps(x, first_lanes(n), v);
  }
};

}  // namespace

constinit const DeltaKernels kDeltaKernels = make_delta_kernels<Table>();

}  // namespace vitrine::kernels::avx512
