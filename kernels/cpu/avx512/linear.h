// SPDX-License-Identifier: Apache-2.0
// What the files of the AVX-512 matrix products share.
#pragma once

#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {

/// Where the results of a matrix product go, and what is done to them on the way.
struct Target {
  const int32_t* out_rows;
  const float* bias;            // by weight row, or null
  const float* residual_scale;  // or null
  float* out;
  int64_t out_stride;
};

VITRINE_INLINE int64_t mapped(const int32_t* map, int64_t m) { return map != nullptr ? map[m] : m; }

/// Stores the masked lanes of the dots of weight rows row …, for input row m.
VITRINE_INLINE void store_dots(const Target& target, int64_t m, int64_t row, __mmask16 mask,
                               __m512 v) {
  float* out = target.out + mapped(target.out_rows, m) * target.out_stride + row;
  if (target.bias != nullptr) {
    v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(mask, target.bias + row));
  }
  if (target.residual_scale != nullptr) {
    const __m512 scaled = _mm512_mul_ps(_mm512_set1_ps(*target.residual_scale), v);
    v = _mm512_add_ps(_mm512_maskz_loadu_ps(mask, out), scaled);
  }
  _mm512_mask_storeu_ps(out, mask, v);
}

/// up is null for a plain product; otherwise the result is silu(weight . x) * (up . x).
void linear_float(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, const Target& target);
/// Takes a weight that is `tiled`.
void linear_tiled(const Weight& weight, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, const Target& target);
void linear_quantized(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                      const Activations& input, const RowMap& rows, const Target& target);

}  // namespace vitrine::kernels::avx512
