// SPDX-License-Identifier: Apache-2.0
// What the files of the AVX2 matrix products share.
#pragma once

#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {

/// Where the results of a matrix product go, and what is done to them on the way.
struct Target {
  const int32_t* out_rows;
  const float* bias;            // by weight row, or null
  const float* residual_scale;  // or null
  float* out;
  int64_t out_stride;
};

VITRINE_INLINE int64_t mapped(const int32_t* map, int64_t m) { return map != nullptr ? map[m] : m; }

/// Stores the first `count` of the dots of weight rows row …, all eight where it is more, for input
/// row m.
VITRINE_INLINE void store_dots(const Target& target, int64_t m, int64_t row, int64_t count,
                               __m256 v) {
  float* out = target.out + mapped(target.out_rows, m) * target.out_stride + row;
  const auto finish = [&](auto load) __attribute__((always_inline)) {
    if (target.bias != nullptr) v = _mm256_add_ps(v, load(target.bias + row));
    if (target.residual_scale != nullptr) {
      const __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(*target.residual_scale), v);
      v = _mm256_add_ps(load(out), scaled);
    }
    return v;
  };
  if (count >= 8) {  // a masked store takes many times the time of a whole one
    _mm256_storeu_ps(out, finish([](const float* x) { return _mm256_loadu_ps(x); }));
  } else {
    const __m256i mask = first_lanes_8(count);
    const __m256 finished = finish([&](const float* x) { return _mm256_maskload_ps(x, mask); });
    _mm256_maskstore_ps(out, mask, finished);
  }
}

/// up is null for a plain product; otherwise the result is silu(weight . x) * (up . x).
void linear_float(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, const Target& target);
/// Takes a weight that is `tiled`.
void linear_tiled(const Weight& weight, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, const Target& target);
void linear_quantized(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                      const Activations& input, const RowMap& rows, const Target& target);
/// Does what linear_quantized does, with AVX-VNNI's dot products.
void linear_quantized_vnni(const Weight& weight, const Weight* up, int64_t row_begin,
                           int64_t row_end, const Activations& input, const RowMap& rows,
                           const Target& target);

}  // namespace vitrine::kernels::avx2
