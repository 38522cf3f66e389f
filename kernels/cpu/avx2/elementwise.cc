// SPDX-License-Identifier: Apache-2.0
// Norms, rotary embedding and sums of the AVX2 table.
#include "../tanh_constants.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {

float mean_square(const float* x, int64_t n) {
  Lanes sum = set_lanes(0.0f);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const Lanes v = load(x + i);
    sum = fma(v, v, sum);
  }
  if (i < n) {
    const Mask mask = first_lanes(n - i);
    const Lanes v = load(x + i, mask);
    sum = blend(sum, fma(v, v, sum), mask);
  }
  return sum_lanes(sum) / static_cast<float>(n);
}

float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out) {
  const float mean = mean_square(x, n);
  const __m128 root = _mm_sqrt_ss(_mm_set_ss(mean + eps));
  const __m256 inverse = _mm256_set1_ps(1.0f / _mm_cvtss_f32(root));
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256 v = _mm256_mul_ps(_mm256_loadu_ps(x + i), inverse);
    if (weight != nullptr) v = _mm256_mul_ps(v, _mm256_loadu_ps(weight + i));
    _mm256_storeu_ps(out + i, v);
  }
  if (i < n) {
    const __m256i mask = first_lanes_8(n - i);
    __m256 v = _mm256_mul_ps(_mm256_maskload_ps(x + i, mask), inverse);
    if (weight != nullptr) v = _mm256_mul_ps(v, _mm256_maskload_ps(weight + i, mask));
    _mm256_maskstore_ps(out + i, mask, v);
  }
  return mean;
}

void rope(float* x, const float* cos, const float* sin, int32_t n) {
  const int32_t half = n / 2;
  for (int32_t i = 0; i < half; i += 8) {
    const __m256i mask = first_lanes_8(half - i);
    const __m256 a = _mm256_maskload_ps(x + i, mask);
    const __m256 b = _mm256_maskload_ps(x + half + i, mask);
    const __m256 c = _mm256_maskload_ps(cos + i, mask);
    const __m256 s = _mm256_maskload_ps(sin + i, mask);
    const __m256 first = _mm256_sub_ps(_mm256_mul_ps(a, c), _mm256_mul_ps(b, s));
    const __m256 second = _mm256_add_ps(_mm256_mul_ps(b, c), _mm256_mul_ps(a, s));
    _mm256_maskstore_ps(x + i, mask, first);
    _mm256_maskstore_ps(x + half + i, mask, second);
  }
}

void combine(const float* slots, int64_t slot_stride, const float* weights, int32_t k,
             const float* shared, float shared_weight, float multiplier, int64_t n,
             float* residual) {
  const __m256 scale = _mm256_set1_ps(multiplier);
  const __m256 shared_scale = _mm256_set1_ps(shared_weight);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i mask = first_lanes_8(n - i);
    __m256 sum = _mm256_mul_ps(_mm256_set1_ps(weights[0]), _mm256_maskload_ps(slots + i, mask));
    for (int32_t s = 1; s < k; ++s) {
      const __m256 slot = _mm256_maskload_ps(slots + s * slot_stride + i, mask);
      sum = _mm256_add_ps(sum, _mm256_mul_ps(_mm256_set1_ps(weights[s]), slot));
    }
    if (shared != nullptr) {
      const __m256 v = _mm256_maskload_ps(shared + i, mask);
      sum = _mm256_add_ps(sum, _mm256_mul_ps(shared_scale, v));
    }
    const __m256 old = _mm256_maskload_ps(residual + i, mask);
    const __m256 updated = _mm256_add_ps(old, _mm256_mul_ps(scale, sum));
    _mm256_maskstore_ps(residual + i, mask, updated);
  }
}

void add_scaled(const float* x, float multiplier, int64_t n, float* residual) {
  const __m256 scale = _mm256_set1_ps(multiplier);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i mask = first_lanes_8(n - i);
    const __m256 product = _mm256_mul_ps(scale, _mm256_maskload_ps(x + i, mask));
    const __m256 old = _mm256_maskload_ps(residual + i, mask);
    _mm256_maskstore_ps(residual + i, mask, _mm256_add_ps(old, product));
  }
}

void multiply(const float* factors, int64_t n, float* values) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i mask = first_lanes_8(n - i);
    const __m256 v = _mm256_maskload_ps(values + i, mask);
    _mm256_maskstore_ps(values + i, mask, _mm256_mul_ps(v, _mm256_maskload_ps(factors + i, mask)));
  }
}

namespace {

void gate_by_gelu(const float* gate, const float* up, int64_t n, float* out) {
  const __m256 cubic = _mm256_set1_ps(kGeluCubic), factor = _mm256_set1_ps(kGeluFactor);
  const __m256 one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i mask = first_lanes_8(n - i);
    const __m256 g = _mm256_maskload_ps(gate + i, mask);
    const __m256 t = _mm256_mul_ps(_mm256_mul_ps(_mm256_mul_ps(g, g), cubic), g);
    const __m256 z = _mm256_mul_ps(factor, _mm256_add_ps(g, t));
    const __m256 e = exp_8(_mm256_xor_ps(z, _mm256_set1_ps(-0.0f)));
    const __m256 gelu = _mm256_div_ps(g, _mm256_add_ps(one, e));
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(gelu, _mm256_maskload_ps(up + i, mask)));
  }
}

VITRINE_INLINE __m256 tanh_8(__m256 x) {
  const __m256 one = _mm256_set1_ps(1.0f), sign_bit = _mm256_set1_ps(-0.0f);
  const __m256 magnitude = _mm256_andnot_ps(sign_bit, x);
  const __m256 z = _mm256_mul_ps(x, x);
  __m256 p = _mm256_set1_ps(kTanhC4);
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanhC3));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanhC2));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanhC1));
  p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(kTanhC0));
  const __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
  const __m256 e = exp_8(_mm256_add_ps(magnitude, magnitude));
  const __m256 large =
      _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2.0f), _mm256_add_ps(e, one)));
  const __m256 is_small = _mm256_cmp_ps(magnitude, _mm256_set1_ps(kTanhBorder), _CMP_LT_OQ);
  return _mm256_blendv_ps(_mm256_xor_ps(large, _mm256_and_ps(x, sign_bit)), small, is_small);
}

}  // namespace

void soft_cap(float cap, int64_t n, float* values) {
  const __m256 limit = _mm256_set1_ps(cap);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i mask = first_lanes_8(n - i);
    const __m256 x = _mm256_div_ps(_mm256_maskload_ps(values + i, mask), limit);
    _mm256_maskstore_ps(values + i, mask, _mm256_mul_ps(limit, tanh_8(x)));
  }
}

void apply_gating(const Gating& gating, const float* gate, const float* up, int64_t n, float* out) {
  if (gating.kind == Gating::Kind::kGeluTanh) return gate_by_gelu(gate, up, n, out);
  const __m256 high = _mm256_set1_ps(gating.limit), low = _mm256_set1_ps(-gating.limit);
  const __m256 alpha = _mm256_set1_ps(gating.alpha), one = _mm256_set1_ps(1.0f);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i mask = first_lanes_8(n - i);
    // The second of min and max where one of both is a NaN.
    const __m256 g = _mm256_min_ps(high, _mm256_maskload_ps(gate + i, mask));
    const __m256 u = _mm256_max_ps(low, _mm256_min_ps(high, _mm256_maskload_ps(up + i, mask)));
    const __m256 negated = _mm256_xor_ps(_mm256_mul_ps(alpha, g), _mm256_set1_ps(-0.0f));
    const __m256 glu = _mm256_div_ps(g, _mm256_add_ps(one, exp_8(negated)));
    _mm256_maskstore_ps(out + i, mask, _mm256_mul_ps(_mm256_add_ps(u, one), glu));
  }
}

float sigmoid(float x) {
  const float e = _mm256_cvtss_f32(exp_8(_mm256_set1_ps(-x)));
  return 1.0f / (1.0f + e);
}

// Two streams, each asked for 2 KiB ahead: a tenth faster than one, or than four.
uint64_t read_lines(const void* data, int64_t lines) {
  constexpr int kLines = 2;  // of each stream at once
  constexpr int64_t kAhead = 2048;
  const auto* bytes = static_cast<const char*>(data);
  const int64_t half = lines / (2 * kLines) * kLines;
  __m256i sums[4 * kLines];
  for (__m256i& sum : sums) sum = _mm256_setzero_si256();
  const auto add = [&](int i, const char* line) {
    const auto* parts = reinterpret_cast<const __m256i*>(line);
    sums[2 * i] = _mm256_xor_si256(sums[2 * i], _mm256_loadu_si256(parts));
    sums[2 * i + 1] = _mm256_xor_si256(sums[2 * i + 1], _mm256_loadu_si256(parts + 1));
  };
  for (int64_t line = 0; line < half; line += kLines) {
    for (int i = 0; i < 2 * kLines; ++i) {
      const char* at = bytes + 64 * (line + i / kLines * half + i % kLines);
      _mm_prefetch(at + kAhead, _MM_HINT_T0);
      add(i, at);
    }
  }
  for (int64_t line = 2 * half; line < lines; ++line) add(0, bytes + 64 * line);
  for (int i = 1; i < 4 * kLines; ++i) sums[0] = _mm256_xor_si256(sums[0], sums[i]);
  uint64_t words[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(words), sums[0]);
  return words[0] ^ words[1] ^ words[2] ^ words[3];
}

}  // namespace vitrine::kernels::avx2
