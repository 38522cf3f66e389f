// SPDX-License-Identifier: Apache-2.0
// Latent attention of the AVX2 table.
#include "../latent.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

struct Table {
  using Lanes = avx2::Lanes;
  struct Integers {
    __m256i low, high;
  };
  VITRINE_INLINE Lanes load(const float* x) { return avx2::load(x); }
  VITRINE_INLINE void store(float* x, Lanes v) { avx2::store(x, v); }
  VITRINE_INLINE Lanes set(float x) { return set_lanes(x); }
  VITRINE_INLINE Lanes add(Lanes a, Lanes b) { return avx2::add(a, b); }
  VITRINE_INLINE Lanes sub(Lanes a, Lanes b) { return avx2::sub(a, b); }
  VITRINE_INLINE Lanes mul(Lanes a, Lanes b) { return avx2::mul(a, b); }
  VITRINE_INLINE Lanes div(Lanes a, Lanes b) { return avx2::div(a, b); }
  VITRINE_INLINE Lanes fma(Lanes a, Lanes b, Lanes c) { return avx2::fma(a, b, c); }
  VITRINE_INLINE Lanes max(Lanes a, Lanes b) { return avx2::max(a, b); }
  VITRINE_INLINE Lanes exp(Lanes x) { return exp_lanes(x); }
  VITRINE_INLINE Integers load_integers(const int32_t* x) {
    const auto* words = reinterpret_cast<const __m256i*>(x);
    return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
  }
  VITRINE_INLINE void store_integers(int32_t* x, Integers v) {
    auto* words = reinterpret_cast<__m256i*>(x);
    _mm256_storeu_si256(words, v.low);
    _mm256_storeu_si256(words + 1, v.high);
  }
  VITRINE_INLINE Integers set_integers(int32_t x) {
    return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
  }
  VITRINE_INLINE Integers bit_and(Integers a, Integers b) {
    return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
  }
  VITRINE_INLINE Integers round(Lanes x) {
    return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)};
  }
  VITRINE_INLINE Lanes widen(Integers x) {
    return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)};
  }
  VITRINE_INLINE Integers dot(Integers sum, Integers a, Integers b) {
    return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, b.low)),
            _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, b.high))};
  }
  VITRINE_INLINE Integers pair(Integers first, Integers second) {
    return {_mm256_or_si256(first.low, _mm256_slli_epi32(second.low, 16)),
            _mm256_or_si256(first.high, _mm256_slli_epi32(second.high, 16))};
  }
};

}  // namespace

void attend_latent_f32(const KvView& kv, const AttentionSpan& span) {
  attend_latent_floats<Table, WeightFormat::kF32>(kv, span);
}
void attend_latent_f16(const KvView& kv, const AttentionSpan& span) {
  attend_latent_floats<Table, WeightFormat::kF16>(kv, span);
}
void attend_latent_bf16(const KvView& kv, const AttentionSpan& span) {
  attend_latent_floats<Table, WeightFormat::kBF16>(kv, span);
}
void attend_latent_i16(const KvView& kv, const AttentionSpan& span) {
  attend_latent_integers<Table>(kv, span);
}

}  // namespace vitrine::kernels::avx2
