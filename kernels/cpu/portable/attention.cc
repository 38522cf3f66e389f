// SPDX-License-Identifier: Apache-2.0
// Block attention of the portable table.
#include "../packed.h"
#include "../window.h"
#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {
namespace {

/// One query head's running softmax.
struct Running {
  float max = -INFINITY;
  float sum = 0.0f;
  float out[kMaxHeadDim] = {};
};

/// Where 16 consecutive positions of one kv head lie, in elements.
struct Run {
  int64_t keys;    // [head_dim], stride block_size; position j at + j
  int64_t values;  // [16, head_dim]
};

Run find_run(const KvView& kv, const int32_t* block_table, int32_t kv_head, int32_t position) {
  const int64_t block = block_table[position / kv.block_size];
  const int64_t offset = position % kv.block_size;
  const int64_t base = (block * kv.kv_heads + kv_head) * kv.head_dim * kv.block_size;
  return {base + offset, base + offset * kv.head_dim};
}

template <WeightFormat kFormat>
void attend_block(const KvView& kv, const Run* runs, int32_t begin, int32_t valid,
                  const float* query, float scale, Running* state) {
  float scores[kAttentionBlock];
  MaxLanes lanes_max;
  for (int32_t j = begin; j < valid; ++j) {
    const int64_t key = runs[j / 16].keys + j % 16;
    float dot = 0.0f;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      dot = std::fma(query[d],
                     load_element(kFormat, kv.keys, key + static_cast<int64_t>(d) * kv.block_size),
                     dot);
    }
    scores[j] = dot * scale;
    lanes_max.take(j, scores[j]);
  }
  const float block_max = lanes_max.max();
  const float max = block_max > state->max ? block_max : state->max;
  const float correction = exp_float(state->max - max);
  Lanes sum;
  for (int32_t j = begin; j < valid; ++j) {
    scores[j] = exp_float(scores[j] - max);
    sum.add_at(j, scores[j]);
  }
  state->sum = state->sum * correction + sum.sum();
  state->max = max;
  for (int32_t d = 0; d < kv.head_dim; ++d) state->out[d] = state->out[d] * correction;
  for (int32_t j = begin; j < valid; ++j) {
    const int64_t value = runs[j / 16].values + static_cast<int64_t>(j % 16) * kv.head_dim;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      state->out[d] =
          std::fma(scores[j], load_element(kFormat, kv.values, value + d), state->out[d]);
    }
  }
}

template <WeightFormat kFormat>
void attend_span(const KvView& kv, const AttentionSpan& span) {
  for (int32_t i = 0; i < span.tokens * span.heads; ++i) {
    const int32_t token = i / span.heads, head = i % span.heads;
    const int32_t position = span.position + token;
    const float* query = span.query + token * span.query_token_stride + head * span.query_stride;
    Running state;
    state.max = first_max(span, head);
    state.sum = first_sum(span);
    const int32_t first = first_seen(span, position);
    for (int32_t start = first_block_seen(span, position); start <= position;
         start += kAttentionBlock) {
      const int32_t left = position + 1 - start;
      const int32_t valid = left < kAttentionBlock ? left : kAttentionBlock;
      Run runs[kAttentionBlock / 16];
      for (int32_t j = 0; j < valid; j += 16) {
        runs[j / 16] = find_run(kv, span.block_table, span.kv_head, start + j);
      }
      const int32_t begin = first > start ? first - start : 0;
      attend_block<kFormat>(kv, runs, begin, valid, query, span.scale, &state);
    }
    float* target = span.out + token * span.out_token_stride + head * span.out_stride;
    for (int32_t d = 0; d < kv.head_dim; ++d) target[d] = state.out[d] / state.sum;
  }
}

}  // namespace

void attend_f32(const KvView& kv, const AttentionSpan& span) {
  attend_span<WeightFormat::kF32>(kv, span);
}
void attend_f16(const KvView& kv, const AttentionSpan& span) {
  attend_span<WeightFormat::kF16>(kv, span);
}
void attend_bf16(const KvView& kv, const AttentionSpan& span) {
  attend_span<WeightFormat::kBF16>(kv, span);
}

}  // namespace vitrine::kernels::portable
