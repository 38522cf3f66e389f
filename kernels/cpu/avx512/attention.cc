// Block attention of the AVX-512 table.
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

constexpr int kMaxHeadDim = 256;
constexpr int kRuns = kAttentionBlock / 16;

/// Where up to 64 consecutive positions of one kv head lie, in runs of 16.
struct Runs {
  const uint8_t* keys[kRuns];    // [head_dim], stride block_size; position j at + j
  const uint8_t* values[kRuns];  // [16, head_dim]
};

/// Walks the block table 16 positions at a time.
struct RunCursor {
  const KvView& kv;
  const int32_t* block_table;
  int64_t kv_head;
  int32_t block_index;
  int32_t offset;

  void take(Runs* runs, int count) {
    const int64_t bytes = element_bytes(kv.format);
    const int64_t block_elements = static_cast<int64_t>(kv.head_dim) * kv.block_size;
    const auto* keys = static_cast<const uint8_t*>(kv.keys);
    const auto* values = static_cast<const uint8_t*>(kv.values);
    for (int i = 0; i < count; ++i) {
      const int64_t block = block_table[block_index];
      const int64_t base = (block * kv.kv_heads + kv_head) * block_elements;
      runs->keys[i] = keys + (base + offset) * bytes;
      runs->values[i] = values + (base + static_cast<int64_t>(offset) * kv.head_dim) * bytes;
      offset += 16;
      if (offset == kv.block_size) {
        offset = 0;
        ++block_index;
      }
    }
  }
};

/// The running softmax of kQueries heads. out is padded to whole vectors.
template <int kQueries>
struct State {
  float max[kQueries];
  float sum[kQueries];
  alignas(64) float out[kQueries][kMaxHeadDim];
  alignas(64) float p[kQueries][kAttentionBlock];
};

/// Scores kCount runs of 16 positions, leaves exp(score - max) in state->p, updates max and sum;
/// correction[q] = exp(old max - max).
template <WeightFormat kFormat, int kQueries, int kCount>
VITRINE_INLINE void softmax_runs(const Runs& runs, __mmask16 last, int64_t stride, int32_t head_dim,
                                 const float* query, int64_t query_stride, float scale,
                                 State<kQueries>* state, float* correction) {
  __m512 score[kQueries][kCount];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) score[q][i] = _mm512_setzero_ps();
  }
  for (int32_t d = 0; d < head_dim; ++d) {
    __m512 key[kCount];
#pragma GCC unroll 4
    for (int i = 0; i < kCount - 1; ++i) {
      key[i] = load_lanes<kFormat>(runs.keys[i] + d * stride);
      if (kQueries > 1) keep_in_register(key[i]);
    }
    key[kCount - 1] = load_lanes<kFormat>(runs.keys[kCount - 1] + d * stride, last);
#pragma GCC unroll 4
    for (int q = 0; q < kQueries; ++q) {
      const __m512 element = _mm512_set1_ps(query[q * query_stride + d]);
#pragma GCC unroll 4
      for (int i = 0; i < kCount; ++i) score[q][i] = _mm512_fmadd_ps(element, key[i], score[q][i]);
    }
  }
  const __m512 factor = _mm512_set1_ps(scale);
  __m512 shift = _mm512_setzero_ps();  // lane q: old max - max
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
    __m512 lanes_max = minus_infinity();
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const __mmask16 mask = i == kCount - 1 ? last : 0xffff;
      score[q][i] = _mm512_mul_ps(score[q][i], factor);
      lanes_max = _mm512_mask_max_ps(lanes_max, mask, score[q][i], lanes_max);
    }
    const float block_max = max_lanes(lanes_max);
    const float max = block_max > state->max[q] ? block_max : state->max[q];
    const auto lane = static_cast<__mmask16>(1u << q);
    shift = _mm512_mask_sub_ps(shift, lane, _mm512_set1_ps(state->max[q]), _mm512_set1_ps(max));
    state->max[q] = max;
    const __m512 subtracted = _mm512_set1_ps(max);
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      _mm512_store_ps(state->p[q] + 16 * i, _mm512_sub_ps(score[q][i], subtracted));
    }
  }
  _mm512_store_ps(correction, exp_lanes(shift));
  // One query at a time: all at once would spill registers (measured).
#pragma GCC unroll 1
  for (int q = 0; q < kQueries; ++q) {
    __m512 sum = _mm512_setzero_ps();
#pragma GCC unroll 4
    for (int i = 0; i < kCount; ++i) {
      const __mmask16 mask = i == kCount - 1 ? last : 0xffff;
      const __m512 p = exp_lanes(_mm512_load_ps(state->p[q] + 16 * i));
      _mm512_store_ps(state->p[q] + 16 * i, p);
      sum = _mm512_mask_add_ps(sum, mask, sum, p);
    }
    state->sum[q] = state->sum[q] * correction[q] + sum_lanes(sum);
  }
}

/// Adds p * value over the block for kVectors vectors of the head, from element `first`.
template <WeightFormat kFormat, int kQueries, int kVectors>
VITRINE_INLINE void add_values(const Runs& runs, int32_t valid, int32_t first, int32_t head_dim,
                               const float* correction, State<kQueries>* state) {
  const __mmask16 last = first_lanes(head_dim - first - 16 * (kVectors - 1));
  constexpr int64_t kBytes = element_bytes(kFormat);
  __m512 sum[kQueries][kVectors];
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const __m512 old = _mm512_load_ps(state->out[q] + first + 16 * v);
      sum[q][v] = _mm512_mul_ps(old, _mm512_set1_ps(correction[q]));
    }
  }
  for (int32_t start = 0; start < valid; start += 16) {
    const uint8_t* value = runs.values[start / 16] + first * kBytes;
    const int32_t end = valid - start < 16 ? valid : start + 16;
    for (int32_t j = start; j < end; ++j, value += head_dim * kBytes) {
      __m512 v[kVectors];
#pragma GCC unroll 4
      for (int i = 0; i < kVectors - 1; ++i) {
        v[i] = load_lanes<kFormat>(value + 16 * i * kBytes);
        if (kQueries > 1) keep_in_register(v[i]);
      }
      v[kVectors - 1] = load_lanes<kFormat>(value + 16 * (kVectors - 1) * kBytes, last);
#pragma GCC unroll 4
      for (int q = 0; q < kQueries; ++q) {
        const __m512 p = _mm512_set1_ps(state->p[q][j]);
#pragma GCC unroll 4
        for (int i = 0; i < kVectors; ++i) sum[q][i] = _mm512_fmadd_ps(p, v[i], sum[q][i]);
      }
    }
  }
#pragma GCC unroll 4
  for (int q = 0; q < kQueries; ++q) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(state->out[q] + first + 16 * v, sum[q][v]);
  }
}

template <WeightFormat kFormat, int kQueries>
__attribute__((noinline)) void attend(const KvView& kv, const int32_t* block_table,
                                      int32_t position, int32_t kv_head, const float* query,
                                      int64_t query_stride, float scale, float* out,
                                      int64_t out_stride) {
  const int32_t head_dim = kv.head_dim;
  State<kQueries> state;
  for (int q = 0; q < kQueries; ++q) {
    state.max[q] = -__builtin_inff();
    state.sum[q] = 0.0f;
    for (int32_t d = 0; d < head_dim; d += 16) {
      _mm512_store_ps(state.out[q] + d, _mm512_setzero_ps());
    }
  }
  RunCursor cursor{kv, block_table, kv_head, 0, 0};
  for (int32_t start = 0; start <= position; start += kAttentionBlock) {
    const int32_t left = position + 1 - start;
    const int32_t valid = left < kAttentionBlock ? left : kAttentionBlock;
    const int count = (valid + 15) / 16;
    const __mmask16 last = first_lanes(valid - 16 * (count - 1));
    Runs runs;
    cursor.take(&runs, count);
    const int64_t stride = kv.block_size * element_bytes(kFormat);
    alignas(64) float correction[16];
    switch (count) {
      case 1:
        softmax_runs<kFormat, kQueries, 1>(runs, last, stride, head_dim, query, query_stride, scale,
                                           &state, correction);
        break;
      case 2:
        softmax_runs<kFormat, kQueries, 2>(runs, last, stride, head_dim, query, query_stride, scale,
                                           &state, correction);
        break;
      case 3:
        softmax_runs<kFormat, kQueries, 3>(runs, last, stride, head_dim, query, query_stride, scale,
                                           &state, correction);
        break;
      default:
        softmax_runs<kFormat, kQueries, 4>(runs, last, stride, head_dim, query, query_stride, scale,
                                           &state, correction);
    }
    for (int32_t first = 0; first < head_dim; first += 64) {
      const int32_t rest = head_dim - first;
      if (rest > 48) {
        add_values<kFormat, kQueries, 4>(runs, valid, first, head_dim, correction, &state);
      } else if (rest > 32) {
        add_values<kFormat, kQueries, 3>(runs, valid, first, head_dim, correction, &state);
      } else if (rest > 16) {
        add_values<kFormat, kQueries, 2>(runs, valid, first, head_dim, correction, &state);
      } else {
        add_values<kFormat, kQueries, 1>(runs, valid, first, head_dim, correction, &state);
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) {
    const __m512 sum = _mm512_set1_ps(state.sum[q]);
    for (int32_t d = 0; d < head_dim; d += 16) {
      const __m512 v = _mm512_div_ps(_mm512_load_ps(state.out[q] + d), sum);
      _mm512_mask_storeu_ps(out + q * out_stride + d, first_lanes(head_dim - d), v);
    }
  }
}

template <WeightFormat kFormat>
void attend_all(const KvView& kv, const int32_t* block_table, int32_t position, int32_t kv_head,
                const float* query, int64_t query_stride, int32_t num_queries, float scale,
                float* out, int64_t out_stride) {
  while (num_queries > 0) {
    int done = 1;
    if (num_queries >= 4) {
      done = 4;
      attend<kFormat, 4>(kv, block_table, position, kv_head, query, query_stride, scale, out,
                         out_stride);
    } else if (num_queries >= 2) {
      done = 2;
      attend<kFormat, 2>(kv, block_table, position, kv_head, query, query_stride, scale, out,
                         out_stride);
    } else {
      attend<kFormat, 1>(kv, block_table, position, kv_head, query, query_stride, scale, out,
                         out_stride);
    }
    num_queries -= done;
    query += done * query_stride;
    out += done * out_stride;
  }
}

}  // namespace

void attention(const KvView& kv, const int32_t* block_table, int32_t position, int32_t kv_head,
               const float* query, int64_t query_stride, int32_t num_queries, float scale,
               float* out, int64_t out_stride) {
  const auto attend_format = kv.format == WeightFormat::kF16    ? attend_all<WeightFormat::kF16>
                             : kv.format == WeightFormat::kBF16 ? attend_all<WeightFormat::kBF16>
                                                                : attend_all<WeightFormat::kF32>;
  attend_format(kv, block_table, position, kv_head, query, query_stride, num_queries, scale, out,
                out_stride);
}

}  // namespace vitrine::kernels::avx512
