// SPDX-License-Identifier: Apache-2.0
// A further way to keep keys and values, as whoever adds one writes it: this file and its
// registration. Keys in bfloat16 and values in float32, each position's elements in one piece, in
// plain C++ for every instruction set; the arithmetic is that of docs/numerics.md.
#include <cmath>
#include <cstring>

#include "kernels/cpu/packed.h"
#include "kernels/cpu/portable/math.h"
#include "kv/codec.h"

namespace vitrine::kv {
namespace {

using kernels::AttentionSpan;
using kernels::KvView;
using kernels::WeightFormat;

int64_t key_bytes(int64_t head_dim) { return head_dim * 2; }
int64_t value_bytes(int64_t head_dim) { return head_dim * 4; }

/// The first element of a position's key, and value.
int64_t element(const KvView& kv, int64_t block, int64_t kv_head, int64_t offset) {
  return ((block * kv.kv_heads + kv_head) * kv.block_size + offset) * kv.head_dim;
}

void write(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head, const float* key,
           const float* value) {
  const int64_t first = element(kv, block, kv_head, offset);
  for (int32_t d = 0; d < kv.head_dim; ++d) {
    kernels::store_element(WeightFormat::kBF16, kv.keys, first + d, key[d]);
    kernels::store_element(WeightFormat::kF32, kv.values, first + d, value[d]);
  }
}

void attend_one(const KvView& kv, const AttentionSpan& span, int32_t position, const float* query,
                float* out) {
  float max = -INFINITY, total = 0;
  std::memset(out, 0, static_cast<size_t>(kv.head_dim) * sizeof(float));
  for (int32_t start = 0; start <= position; start += kernels::kAttentionBlock) {
    const int32_t valid = std::min(position + 1 - start, kernels::kAttentionBlock);
    const auto at = [&](int32_t j) {
      return element(kv, span.block_table[(start + j) / kv.block_size], span.kv_head,
                     (start + j) % kv.block_size);
    };
    float scores[kernels::kAttentionBlock];
    float largest = max;
    for (int32_t j = 0; j < valid; ++j) {
      float dot = 0;
      for (int32_t d = 0; d < kv.head_dim; ++d) {
        dot =
            std::fma(query[d], kernels::load_element(WeightFormat::kBF16, kv.keys, at(j) + d), dot);
      }
      scores[j] = dot * span.scale;
      largest = std::max(largest, scores[j]);
    }
    const float correction = kernels::portable::exp_float(max - largest);
    kernels::portable::Lanes sum;
    for (int32_t j = 0; j < valid; ++j) {
      scores[j] = kernels::portable::exp_float(scores[j] - largest);
      sum.add_at(j, scores[j]);
    }
    total = total * correction + sum.sum();
    max = largest;
    for (int32_t d = 0; d < kv.head_dim; ++d) {
      out[d] = out[d] * correction;
      for (int32_t j = 0; j < valid; ++j) {
        const float value = kernels::load_element(WeightFormat::kF32, kv.values, at(j) + d);
        out[d] = std::fma(scores[j], value, out[d]);
      }
    }
  }
  for (int32_t d = 0; d < kv.head_dim; ++d) out[d] = out[d] / total;
}

void attend(const KvView& kv, const AttentionSpan& span) {
  for (int32_t token = 0; token < span.tokens; ++token) {
    for (int32_t head = 0; head < span.heads; ++head) {
      attend_one(kv, span, span.position + token,
                 span.query + token * span.query_token_stride + head * span.query_stride,
                 span.out + token * span.out_token_stride + head * span.out_stride);
    }
  }
}

const kernels::KvKernels* kernels_of(const kernels::CpuKernels&) {
  static constexpr kernels::KvKernels kKernels{write, attend};
  return &kKernels;
}

VITRINE_REGISTER_KV_CODEC((CodecEntry{
    .name = "keys:bf16,values:f32",
    .key_bytes = key_bytes,
    .value_bytes = value_bytes,
    .cpu_kernels = kernels_of,
}));

}  // namespace
}  // namespace vitrine::kv
