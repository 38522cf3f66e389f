// SPDX-License-Identifier: Apache-2.0
// Attention over integer keys and values, of the portable table, and their writing.
#include <cstring>

#include "../kv_int16.h"
#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {
namespace {

/// The first (0) or second (1) number of a word.
int16_t number_of(int32_t word, int which) {
  return static_cast<int16_t>(static_cast<uint32_t>(word) >> (16 * which));
}

/// One query, quantized, and its running softmax.
struct Running {
  int16_t query[kMaxHeadDim];
  float query_factor;
  float max = -INFINITY;
  float sum = 0.0f;
  float out[kMaxHeadDim] = {};
};

/// The positions `begin` to `valid` - 1 from the sequence's position `start` on.
void attend_block(const KvView& kv, const AttentionSpan& span, int32_t start, int32_t begin,
                  int32_t valid, Running* state) {
  float weights[kAttentionBlock];
  MaxLanes lanes_max;
  const auto run_of = [&](int32_t j) {
    return int16_run(kv, span.block_table[(start + j) / kv.block_size], span.kv_head,
                     (start + j) % kv.block_size);
  };
  for (int32_t j = begin; j < valid; ++j) {
    const Int16Run run = run_of(j);
    int32_t dot = 0;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      const int32_t word = run.keys[d / 2 * kKvLanes + j % kKvLanes];
      dot += state->query[d] * number_of(word, d % 2);
    }
    const float scale = run.key_scales[j % kKvLanes] * state->query_factor;
    weights[j] = static_cast<float>(dot) * scale;
    lanes_max.take(j, weights[j]);
  }
  const float block_max = lanes_max.max();
  const float max = block_max > state->max ? block_max : state->max;
  const float correction = exp_float(state->max - max);
  Lanes sum;
  float largest = 0.0f;
  bool all_finite = true;
  for (int32_t j = begin; j < valid; ++j) {
    const float e = exp_float(weights[j] - max);
    sum.add_at(j, e);
    weights[j] = e * run_of(j).value_scales[j % kKvLanes];
    all_finite = all_finite && weights[j] <= __FLT_MAX__;
    if (weights[j] > largest) largest = weights[j];
  }
  state->sum = state->sum * correction + sum.sum();
  state->max = max;
  const Int16Scale scale = weight_scale(largest, all_finite);
  int32_t numbers[kAttentionBlock];
  for (int32_t j = begin; j < valid; ++j) numbers[j] = int16_number(weights[j], scale.factor);
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    int32_t dot = 0;
    for (int32_t j = begin; j < valid; ++j) {
      const int64_t pair = j % kKvLanes / 2;
      dot += numbers[j] * number_of(run_of(j).values[pair * kv.head_dim + d], j % 2);
    }
    state->out[d] = std::fma(static_cast<float>(dot), scale.scale, state->out[d] * correction);
  }
}

}  // namespace

void kv_write_i16(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                  const float* key, const float* value) {
  const Int16Run target = int16_run(kv, block, kv_head, offset);
  offset %= kKvLanes;
  int16_t numbers[kMaxHeadDim + 1];
  target.key_scales[offset] = quantize_int16(key, kv.head_dim, numbers);
  numbers[kv.head_dim] = 0;
  for (int64_t pair = 0; pair < element_pairs(kv.head_dim); ++pair) {
    memcpy(target.keys + pair * kKvLanes + offset, numbers + 2 * pair, sizeof(int32_t));
  }
  target.value_scales[offset] = quantize_int16(value, kv.head_dim, numbers);
  // The other position of a pair may be another thread's.
  auto* values =
      reinterpret_cast<int16_t*>(target.values + static_cast<int64_t>(offset / 2) * kv.head_dim);
  for (int32_t d = 0; d < kv.head_dim; ++d) values[2 * d + offset % 2] = numbers[d];
}

void attend_i16(const KvView& kv, const AttentionSpan& span) {
  for (int32_t i = 0; i < span.tokens * span.heads; ++i) {
    const int32_t token = i / span.heads, head = i % span.heads;
    const int32_t position = span.position + token;
    Running state;
    const float scale =
        quantize_int16(span.query + token * span.query_token_stride + head * span.query_stride,
                       kv.head_dim, state.query);
    state.query_factor = scale * span.scale;
    state.max = first_max(span, head);
    state.sum = first_sum(span);
    const int32_t first = first_seen(span, position);
    for (int32_t start = first_block_seen(span, position); start <= position;
         start += kAttentionBlock) {
      const int32_t left = position + 1 - start;
      attend_block(kv, span, start, first > start ? first - start : 0,
                   left < kAttentionBlock ? left : kAttentionBlock, &state);
    }
    float* target = span.out + token * span.out_token_stride + head * span.out_stride;
    for (int32_t d = 0; d < kv.head_dim; ++d) target[d] = state.out[d] / state.sum;
  }
}

}  // namespace vitrine::kernels::portable
