// SPDX-License-Identifier: Apache-2.0
// Latent attention of the AVX2 table.
#include "../latent.h"
#include "avx2.h"
#include "lanes.h"

namespace vitrine::kernels::avx2 {
namespace {

struct Table : IntegerLanes {
  static constexpr int32_t kRows = 4;
  static constexpr int kParts = 2, kPartLanes = 8;
  VITRINE_INLINE __m256 load_part(const float* x) { return _mm256_loadu_ps(x); }
  VITRINE_INLINE __m256i load_part(const int32_t* x) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  }
  VITRINE_INLINE void store_part(float* x, __m256 v) { _mm256_storeu_ps(x, v); }
  VITRINE_INLINE void store_part(int32_t* x, __m256i v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(x), v);
  }
  VITRINE_INLINE __m256 set_part(float x) { return _mm256_set1_ps(x); }
  VITRINE_INLINE __m256i set_part(int32_t x) { return _mm256_set1_epi32(x); }
  VITRINE_INLINE __m256 add_product(__m256 a, __m256 b, __m256 sum) {
    return _mm256_fmadd_ps(a, b, sum);
  }
  VITRINE_INLINE __m256i add_product(__m256i a, __m256i b, __m256i sum) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
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
