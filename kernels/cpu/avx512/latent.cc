// SPDX-License-Identifier: Apache-2.0
// Latent attention of the AVX-512 table.
#include "../latent.h"
#include "avx512.h"
#include "lanes.h"

namespace vitrine::kernels::avx512 {
namespace {

using Table = WholeLanes<IntegerLanes>;

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
