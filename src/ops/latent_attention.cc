// SPDX-License-Identifier: Apache-2.0
// latent_attention (MLA; DeepSeek-V2, 2024) in its absorbed form, for prefill and decode alike. A
// position's key is its normed latent and a rotated part, its value the latent; queries are brought
// into the latent's space by the half of kv_b that makes keys, results out of it by the other half.
#include <algorithm>

#include "kernels/cpu/widened_products.h"
#include "ops/attention_parts.h"
#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedLatentAttention final : public PlannedOp {
 public:
  PlannedLatentAttention(PlanContext& context, const OpNode& node,
                         const LatentAttentionParameters& own)
      : kernel_(context.kernel),
        query_(context.scratch.value(node.inputs[0])),
        key_(context.scratch.value(node.inputs[1])),
        out_(context.scratch.value(node.outputs[0])),
        kv_(context.kv[static_cast<size_t>(node.layer)]),
        rope_(context.rope),
        own_(own),
        made_(own.keys_and_values),
        weights_(context.weights.latent(made_)),
        multiply_widened_(kernels::widened_product(kernel_)),
        norm_(context.weights.vector(own.norm, made_.latent)),
        absorbed_(context.scratch.shared_rows("latent_queries", context.shape.max_tokens,
                                              made_.heads * own.key_dim())),
        latents_(context.scratch.shared_rows("latent_outputs", context.shape.max_tokens,
                                             made_.heads * made_.latent)) {
    add_phase("write", &PlannedLatentAttention::write_pieces, &PlannedLatentAttention::write);
    add_phase("attend", &PlannedLatentAttention::attend_pieces, &PlannedLatentAttention::attend);
    add_phase("expand", &PlannedLatentAttention::head_pieces, &PlannedLatentAttention::expand);
    add_phase("quantize", &PlannedLatentAttention::quantize_pieces,
              &PlannedLatentAttention::quantize);
  }

  /// The keys of tiles of tokens; and behind these the queries, head by head.
  int64_t write_pieces(const StepState& step) const { return tiles(step) + made_.heads; }
  void write(const StepState& step, int64_t piece) const {
    if (piece >= tiles(step)) return absorb(step, piece - tiles(step));
    for_tile(step, piece, [&](int64_t token) { write_key(step, token); });
  }

  /// Attention, of a few tokens and so many heads; the last tokens, which see most, come first.
  int64_t attend_pieces(const StepState& step) const {
    return divide_up(step.tokens, tile_tokens(step)) * head_tiles();
  }
  void attend(const StepState& step, int64_t piece) const {
    const int64_t size = tile_tokens(step);
    int64_t begin = (divide_up(step.tokens, size) - 1 - piece / head_tiles()) * size;
    const int64_t end = std::min<int64_t>(step.tokens, begin + size);
    const int64_t head = piece % head_tiles() * kHeadsPerPiece;
    while (begin < end) {  // those of one sequence together
      const int64_t next = end_of_sequence(step, begin, end);
      kernels::AttentionSpan span;
      span.block_table = step.block_tables[begin];
      span.position = step.positions[begin];
      span.tokens = static_cast<int32_t>(next - begin);
      span.heads = static_cast<int32_t>(std::min(made_.heads - head, kHeadsPerPiece));
      span.scale = static_cast<float>(own_.scale);
      span.query = absorbed_.row(begin) + head * own_.key_dim();
      span.query_stride = own_.key_dim();
      span.query_token_stride = absorbed_.width;
      span.out = latents_.row(begin) + head * made_.latent;
      span.out_stride = made_.latent;
      span.out_token_stride = latents_.width;
      kv_.kernels.attend_latent(kv_.view, span);
      begin = next;
    }
  }

  int64_t head_pieces(const StepState&) const { return made_.heads; }
  void expand(const StepState& step, int64_t head) const {
    multiply(weights_.values, head * made_.value_rows, made_.value_rows, step.tokens,
             latents_.data + head * made_.latent, latents_.width,
             out_.data + head * made_.value_rows, out_.width);
  }

  /// Whole rows, since a group of them may reach over heads.
  int64_t quantize_pieces(const StepState& step) const {
    return out_.quantized.empty() ? 0 : tiles(step);
  }
  void quantize(const StepState& step, int64_t piece) const {
    for_tile(step, piece, [&](int64_t token) { out_.quantize(kernel_, token); });
  }

  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".rope+kv_write+latent_attention_" + kv_.codec +
           "+absorbed_" + weight_kernel_name(weights_.keys) +
           (kernels::is_float_format(weights_.keys.format) ? "" : "_widened");
  }
  uint64_t weight_bytes() const override {
    return ops::weight_bytes(weights_.keys) + ops::weight_bytes(weights_.values);
  }

 private:
  static constexpr int64_t kTokensPerPiece = 8;
  static constexpr int64_t kHeadsPerPiece = 16;  // lanes of the kernels
  static constexpr int64_t kTokensAtOnce = 4;    // that the kernels read keys once for

  static int64_t tile_tokens(const StepState& step) {
    return step.one_token_each ? 1 : kTokensAtOnce;
  }
  static int64_t tiles(const StepState& step) { return divide_up(step.tokens, kTokensPerPiece); }
  int64_t head_tiles() const { return divide_up(made_.heads, kHeadsPerPiece); }
  template <typename Do>
  static void for_tile(const StepState& step, int64_t piece, const Do& run) {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) run(token);
  }

  void rotate(float* part, int32_t position) const {
    const int64_t at = position * rope_.half;
    rotate_head(kernel_, part, rope_.cos + at, rope_.sin + at, own_.rotary_dim,
                own_.rotates_neighbours);
  }

  void write_key(const StepState& step, int64_t token) const {
    const int32_t position = step.positions[token];
    float* key = key_.row(token);
    kernel_.rms_norm(key, norm_, static_cast<float>(own_.eps), made_.latent, key);
    rotate(key + made_.latent, position);
    const kernels::KvView& kv = kv_.view;
    for_each_place(step, token, kv_, [&](int32_t block, int32_t offset) {
      kv_.kernels.write_latent(kv, block, offset, key);
    });
  }

  /// A head of all tokens: its rotated part, and the rest times the half that makes keys.
  void absorb(const StepState& step, int64_t head) const {
    const float* query = query_.data + head * own_.query_dim();
    float* absorbed = absorbed_.data + head * own_.key_dim();
    multiply(weights_.keys, head * made_.latent, made_.latent, step.tokens, query, query_.width,
             absorbed, absorbed_.width);
    for (int64_t token = 0; token < step.tokens; ++token) {
      float* part = absorbed_.row(token) + head * own_.key_dim() + made_.latent;
      std::copy_n(query_.row(token) + head * own_.query_dim() + made_.key_rows, own_.rotary_dim,
                  part);
      rotate(part, step.positions[token]);
    }
  }

  /// Rows [begin, begin + rows) of a matrix, of which the quantized ones are multiplied as the
  /// floats that they mean.
  void multiply(const kernels::Weight& matrix, int64_t begin, int64_t rows, int32_t tokens,
                const float* in, int64_t in_stride, float* out, int64_t out_stride) const {
    const bool is_quantized = !kernels::is_float_format(matrix.format);
    kernels::Weight part = matrix;
    part.rows = begin;  // what stands before it
    const kernels::WeightBytes before = kernels::packed_bytes(part);
    const auto behind = [](const void* data, size_t bytes) {
      return data == nullptr ? nullptr : static_cast<const std::byte*>(data) + bytes;
    };
    part.rows = rows;
    part.data = behind(matrix.data, before.data);
    part.scales = behind(matrix.scales, before.scales);
    part.offsets = behind(matrix.offsets, before.offsets);
    kernels::Activations input;
    input.values = in;
    input.value_stride = in_stride;
    kernels::RowMap all;
    all.count = tokens;
    if (is_quantized) return multiply_widened_(part, 0, rows, input, all, out, out_stride);
    kernel_.linear(part, 0, rows, input, all, nullptr, nullptr, out, out_stride);
  }

  const kernels::CpuKernels& kernel_;
  RowBuffer& query_;
  RowBuffer& key_;
  RowBuffer& out_;
  const KvLayer& kv_;
  RopeTables rope_;
  const LatentAttentionParameters& own_;
  const LatentModule& made_;
  const LatentWeights& weights_;
  kernels::WidenedProduct multiply_widened_;
  const float* norm_;
  RowBuffer& absorbed_;  // [tokens, heads * key_dim]
  RowBuffer& latents_;   // [tokens, heads * latent]
};

std::unique_ptr<PlannedOp> plan_latent_attention(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedLatentAttention>(context, node,
                                                  node.as<LatentAttentionParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"latent_attention", plan_latent_attention}));

}  // namespace
}  // namespace vitrine::ops
