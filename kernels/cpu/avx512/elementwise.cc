// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embedding and sums of the AVX-512 table.
#include "../tanh_constants.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {

float mean_square(const float* x, int64_t n) {
  __m512 sum = _mm512_setzero_ps();
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m512 v = _mm512_loadu_ps(x + i);
    sum = _mm512_fmadd_ps(v, v, sum);
  }
  if (i < n) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 v = _mm512_maskz_loadu_ps(mask, x + i);
    sum = _mm512_mask3_fmadd_ps(v, v, sum, mask);
  }
  return sum_lanes(sum) / static_cast<float>(n);
}

float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float mean = mean_square(x, n);
  const __m128 root = _mm_sqrt_ss(_mm_set_ss(mean + eps));
  const __m512 inverse = _mm512_set1_ps(1.0f / _mm_cvtss_f32(root));
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), inverse);
    if (weight != nullptr) v = _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, weight + i));
    _mm512_mask_storeu_ps(out + i, mask, v);
  }
  return mean;
}

void rope(float* x, const float* cos, const float* sin, int32_t n) {
  const int32_t half = n / 2;
  for (int32_t i = 0; i < half; i += 16) {
    const __mmask16 mask = first_lanes(half - i);
    const __m512 a = _mm512_maskz_loadu_ps(mask, x + i);
    const __m512 b = _mm512_maskz_loadu_ps(mask, x + half + i);
    const __m512 c = _mm512_maskz_loadu_ps(mask, cos + i);
    const __m512 s = _mm512_maskz_loadu_ps(mask, sin + i);
    const __m512 first = _mm512_sub_ps(_mm512_mul_ps(a, c), _mm512_mul_ps(b, s));
    const __m512 second = _mm512_add_ps(_mm512_mul_ps(b, c), _mm512_mul_ps(a, s));
    _mm512_mask_storeu_ps(x + i, mask, first);
    _mm512_mask_storeu_ps(x + half + i, mask, second);
  }
}

void combine(const float* slots, int64_t slot_stride, const float* weights, int32_t k,
             const float* shared, float shared_weight, float multiplier, int64_t n,
             float* residual) {
  const __m512 scale = _mm512_set1_ps(multiplier);
  const __m512 shared_scale = _mm512_set1_ps(shared_weight);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    __m512 sum = _mm512_mul_ps(_mm512_set1_ps(weights[0]), _mm512_maskz_loadu_ps(mask, slots + i));
    for (int32_t s = 1; s < k; ++s) {
      const __m512 slot = _mm512_maskz_loadu_ps(mask, slots + s * slot_stride + i);
      sum = _mm512_add_ps(sum, _mm512_mul_ps(_mm512_set1_ps(weights[s]), slot));
    }
    if (shared != nullptr) {
      const __m512 v = _mm512_maskz_loadu_ps(mask, shared + i);
      sum = _mm512_add_ps(sum, _mm512_mul_ps(shared_scale, v));
    }
    const __m512 old = _mm512_maskz_loadu_ps(mask, residual + i);
    const __m512 updated = _mm512_add_ps(old, _mm512_mul_ps(scale, sum));
    _mm512_mask_storeu_ps(residual + i, mask, updated);
  }
}

void add_scaled(const float* x, float multiplier, int64_t n, float* residual) {
  const __m512 scale = _mm512_set1_ps(multiplier);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 product = _mm512_mul_ps(scale, _mm512_maskz_loadu_ps(mask, x + i));
    const __m512 old = _mm512_maskz_loadu_ps(mask, residual + i);
    _mm512_mask_storeu_ps(residual + i, mask, _mm512_add_ps(old, product));
  }
}

void multiply(const float* factors, int64_t n, float* values) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 v = _mm512_maskz_loadu_ps(mask, values + i);
    _mm512_mask_storeu_ps(values + i, mask,
                          _mm512_mul_ps(v, _mm512_maskz_loadu_ps(mask, factors + i)));
  }
}

namespace {

void gate_by_gelu(const float* gate, const float* up, int64_t n, float* out) {
  const __m512 cubic = _mm512_set1_ps(kGeluCubic), factor = _mm512_set1_ps(kGeluFactor);
  const __m512 one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 g = _mm512_maskz_loadu_ps(mask, gate + i);
    const __m512 t = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(g, g), cubic), g);
    const __m512 z = _mm512_mul_ps(factor, _mm512_add_ps(g, t));
    const __m512 e = exp_lanes(_mm512_xor_ps(z, _mm512_set1_ps(-0.0f)));
    const __m512 gelu = _mm512_div_ps(g, _mm512_add_ps(one, e));
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(gelu, _mm512_maskz_loadu_ps(mask, up + i)));
  }
}

VITRINE_INLINE __m512 tanh_lanes(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0f), magnitude = _mm512_abs_ps(x);
  const __m512 z = _mm512_mul_ps(x, x);
  __m512 p = _mm512_set1_ps(kTanhC4);
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kTanhC3));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kTanhC2));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kTanhC1));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(kTanhC0));
  const __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
  const __m512 e = exp_lanes(_mm512_add_ps(magnitude, magnitude));
  const __m512 large =
      _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2.0f), _mm512_add_ps(e, one)));
  const __m512 sign = _mm512_xor_ps(x, magnitude);
  const __mmask16 is_small = _mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(kTanhBorder), _CMP_LT_OQ);
  return _mm512_mask_mov_ps(_mm512_xor_ps(large, sign), is_small, small);
}

}  // namespace

void soft_cap(float cap, int64_t n, float* values) {
  const __m512 limit = _mm512_set1_ps(cap);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    const __m512 x = _mm512_div_ps(_mm512_maskz_loadu_ps(mask, values + i), limit);
    _mm512_mask_storeu_ps(values + i, mask, _mm512_mul_ps(limit, tanh_lanes(x)));
  }
}

void apply_gating(const Gating& gating, const float* gate, const float* up, int64_t n, float* out) {
  if (gating.kind == Gating::Kind::kGeluTanh) return gate_by_gelu(gate, up, n, out);
  const __m512 high = _mm512_set1_ps(gating.limit), low = _mm512_set1_ps(-gating.limit);
  const __m512 alpha = _mm512_set1_ps(gating.alpha), one = _mm512_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 mask = first_lanes(n - i);
    // The second of min and max where one of both is a NaN.
    const __m512 g = _mm512_min_ps(high, _mm512_maskz_loadu_ps(mask, gate + i));
    const __m512 u = _mm512_max_ps(low, _mm512_min_ps(high, _mm512_maskz_loadu_ps(mask, up + i)));
    const __m512 negated = _mm512_xor_ps(_mm512_mul_ps(alpha, g), _mm512_set1_ps(-0.0f));
    const __m512 glu = _mm512_div_ps(g, _mm512_add_ps(one, exp_lanes(negated)));
    _mm512_mask_storeu_ps(out + i, mask, _mm512_mul_ps(_mm512_add_ps(u, one), glu));
  }
}

float sigmoid(float x) {
  const float e = _mm512_cvtss_f32(exp_lanes(_mm512_set1_ps(-x)));
  return 1.0f / (1.0f + e);
}

// Two streams, each asked for 2 KiB ahead: a tenth faster than one, or than four.
uint64_t read_lines(const void* data, int64_t lines) {
  constexpr int kLines = 2;  // of each stream at once
  constexpr int64_t kAhead = 2048;
  const auto* bytes = static_cast<const char*>(data);
  const int64_t half = lines / (2 * kLines) * kLines;
  __m512i sums[2 * kLines];
  for (__m512i& sum : sums) sum = _mm512_setzero_si512();
  for (int64_t line = 0; line < half; line += kLines) {
    for (int i = 0; i < 2 * kLines; ++i) {
      const char* at = bytes + 64 * (line + i / kLines * half + i % kLines);
      _mm_prefetch(at + kAhead, _MM_HINT_T0);
      sums[i] = _mm512_xor_si512(sums[i], _mm512_loadu_si512(at));
    }
  }
  for (int64_t line = 2 * half; line < lines; ++line) {
    sums[0] = _mm512_xor_si512(sums[0], _mm512_loadu_si512(bytes + 64 * line));
  }
  for (int i = 1; i < 2 * kLines; ++i) sums[0] = _mm512_xor_si512(sums[0], sums[i]);
  uint64_t words[8];
  _mm512_storeu_si512(words, sums[0]);
  return words[0] ^ words[1] ^ words[2] ^ words[3] ^ words[4] ^ words[5] ^ words[6] ^ words[7];
}

}  // namespace vitrine::kernels::avx512
