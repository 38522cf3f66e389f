// SPDX-License-Identifier: Apache-2.0
// Latent attention of the AVX-512 table.
#include "../latent.h"
#include "avx512.h"
#include "float_lanes.h"

namespace vitrine::kernels::avx512 {
namespace {

struct Table : FloatLanes {
  using Integers = __m512i;
  VITRINE_INLINE Integers load_integers(const int32_t* x) { return _mm512_loadu_si512(x); }
  VITRINE_INLINE void store_integers(int32_t* x, Integers v) { _mm512_storeu_si512(x, v); }
  VITRINE_INLINE Integers set_integers(int32_t x) { return _mm512_set1_epi32(x); }
  VITRINE_INLINE Integers bit_and(Integers a, Integers b) { return _mm512_and_si512(a, b); }
  VITRINE_INLINE Integers round(Lanes x) { return _mm512_cvtps_epi32(x); }
  VITRINE_INLINE Lanes widen(Integers x) { return _mm512_cvtepi32_ps(x); }
  VITRINE_INLINE Integers dot(Integers sum, Integers a, Integers b) {
    return _mm512_dpwssd_epi32(sum, a, b);
  }
  VITRINE_INLINE Integers pair(Integers first, Integers second) {
    return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
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

}  // namespace vitrine::kernels::avx512
