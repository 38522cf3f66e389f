// SPDX-License-Identifier: Apache-2.0
// The functions of the AVX-512 table (see cpu_kernels.h for what each does). Single-element and
// scattered work (kv_write of floats, head_merge) is the portable table's.
#pragma once

#include "../cpu_kernels.h"

namespace vitrine::kernels::avx512 {

float rms_norm(const float* x, const float* weight, float eps, int64_t n, float* out);
float mean_square(const float* x, int64_t n);
void quantize_row(const float* x, int64_t n, int32_t group_size, int8_t* values, float* scales,
                  GroupSum* sums);
void quantize_whole_row(const float* x, int64_t n, int32_t group_size, float given, int8_t* values,
                        float* scales, GroupSum* sums);
void linear(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
            const RowMap& rows, const float* bias, const float* residual_scale, float* out,
            int64_t out_stride);
void gate_up(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
             const Activations& input, const RowMap& rows, float* out, int64_t out_stride);
/// linear and gate_up with AMX where there are enough input rows.
void linear_amx(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
                const RowMap& rows, const float* bias, const float* residual_scale, float* out,
                int64_t out_stride);
void gate_up_amx(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
                 const Activations& input, const RowMap& rows, float* out, int64_t out_stride);
void embed_row(const Weight& table, int64_t row, float multiplier, float* out);
void widen_row(const RowMajor& matrix, int64_t row, const float* factors, float* out);
void rope(float* x, const float* cos, const float* sin, int32_t n);
void kv_write_i16(const KvView& kv, int32_t block, int32_t offset, int32_t kv_head,
                  const float* key, const float* value);
void attend_f32(const KvView& kv, const AttentionSpan& span);
void attend_f16(const KvView& kv, const AttentionSpan& span);
void attend_bf16(const KvView& kv, const AttentionSpan& span);
void attend_i16(const KvView& kv, const AttentionSpan& span);
void attend_tiles(const KvView& kv, const AttentionSpan& span);
void attend_latent_f32(const KvView& kv, const AttentionSpan& span);
void attend_latent_f16(const KvView& kv, const AttentionSpan& span);
void attend_latent_bf16(const KvView& kv, const AttentionSpan& span);
void attend_latent_i16(const KvView& kv, const AttentionSpan& span);
void router_top_k(const float* logits, int32_t n, int32_t k, bool normalize,
                  bool softmax_after_topk, float* probs, int32_t* ids, float* weights);
void route_weights(const float* logits, const float* probs, const int32_t* ids, int32_t k,
                   bool normalize, bool softmax_after_topk, float* weights);
void combine(const float* slots, int64_t slot_stride, const float* weights, int32_t k,
             const float* shared, float shared_weight, float multiplier, int64_t n,
             float* residual);
void add_scaled(const float* x, float multiplier, int64_t n, float* residual);
void multiply(const float* factors, int64_t n, float* values);
void apply_gating(const Gating& gating, const float* gate, const float* up, int64_t n, float* out);
void soft_cap(float cap, int64_t n, float* values);
float sigmoid(float x);
uint64_t read_lines(const void* data, int64_t lines);
int64_t pack_blocks(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
                    const void* blocks, void* data, void* scales, void* offsets);
int64_t pack_words(const Weight& weight, int64_t row_begin, int64_t row_end, const WordRows& rows,
                   void* data, void* scales, void* offsets);
void head_block(float* logits, int64_t begin, int64_t end, float multiplier, bool statistics,
                HeadBlockStats* stats, const void* next);

}  // namespace vitrine::kernels::avx512
