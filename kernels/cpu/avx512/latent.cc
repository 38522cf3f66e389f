// SPDX-License-Identifier: Apache-2.0
// Latent attention of the AVX-512 table.
#include "../latent.h"
#include "avx512.h"
#include "lanes.h"

namespace vitrine::kernels::avx512 {
namespace {

struct Table : IntegerLanes {
  static constexpr int32_t kRows = 8;
  static constexpr int kParts = 1, kPartLanes = 16;
  using FloatPart = Lanes;
  using IntegerPart = Integers;
  VITRINE_INLINE FloatPart load_part(const float* x) { return load(x); }
  VITRINE_INLINE IntegerPart load_part(const int32_t* x) { return load_integers(x); }
  VITRINE_INLINE void store_part(float* x, FloatPart v) { store(x, v); }
  VITRINE_INLINE void store_part(int32_t* x, IntegerPart v) { store_integers(x, v); }
  VITRINE_INLINE FloatPart set_part(float x) { return set(x); }
  VITRINE_INLINE IntegerPart set_part(int32_t x) { return set_integers(x); }
  VITRINE_INLINE FloatPart fma_part(FloatPart a, FloatPart b, FloatPart c) { return fma(a, b, c); }
  VITRINE_INLINE IntegerPart dot_part(IntegerPart sum, IntegerPart a, IntegerPart b) {
    return dot(sum, a, b);
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
