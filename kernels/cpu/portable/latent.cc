// SPDX-License-Identifier: Apache-2.0
// Latent attention of the portable table, and the writing of its keys for all tables.
#include "../latent.h"
#include "lanes.h"
#include "portable.h"

namespace vitrine::kernels::portable {
namespace {

using Table = WholeLanes<IntegerLanes>;

template <WeightFormat kFormat>
void write_floats(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  uint8_t* place = latent_place(kv, block, offset, float_kv_bytes(kFormat, kv.head_dim));
  for (int32_t d = 0; d < kv.head_dim; ++d) store_element(kFormat, place, d, key[d]);
}

}  // namespace

void write_latent_f32(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  write_floats<WeightFormat::kF32>(kv, block, offset, key);
}
void write_latent_f16(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  write_floats<WeightFormat::kF16>(kv, block, offset, key);
}
void write_latent_bf16(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  write_floats<WeightFormat::kBF16>(kv, block, offset, key);
}
void write_latent_i16(const KvView& kv, int32_t block, int32_t offset, const float* key) {
  uint8_t* place = latent_place(kv, block, offset, int16_kv_bytes(kv.head_dim));
  int16_t numbers[kMaxLatentKey + 1];
  const float scale = quantize_latent(key, kv.head_dim, numbers);
  const size_t bytes = static_cast<size_t>(element_pairs(kv.head_dim)) * sizeof(int32_t);
  __builtin_memcpy(place, numbers, bytes);
  __builtin_memcpy(place + bytes, &scale, sizeof(scale));
}

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

}  // namespace vitrine::kernels::portable
