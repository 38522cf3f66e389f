// SPDX-License-Identifier: Apache-2.0
// attention: norm of query and key heads and clamp where the model has them, rotary embedding (Su
// et al. 2021, halves layout), the write to the KV cache, and grouped-query softmax attention over
// it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/delta_kernels.h"
#include "ops/attention_parts.h"
#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

// Norm of q and k: none, one weight per head (qwen3), or one over the whole row (olmoe).
enum class HeadNorm { kNone, kPerHead, kWholeRow };

HeadNorm head_norm(const OpNode& node) {
  if (node.as<AttentionParameters>().query_norm.empty()) return HeadNorm::kNone;
  return node.as<AttentionParameters>().norms_whole_row ? HeadNorm::kWholeRow : HeadNorm::kPerHead;
}

class PlannedAttention final : public PlannedOp {
 public:
  PlannedAttention(PlanContext& context, const OpNode& node, const AttentionParameters& own)
      : kernel_(context.kernel),
        delta_(kernels::delta_kernels(context.kernel)),
        query_(context.scratch.value(node.inputs[0])),
        key_(node.inputs.size() > 1 ? &context.scratch.value(node.inputs[1]) : nullptr),
        value_(node.inputs.size() > 1 ? &context.scratch.value(node.inputs[2]) : nullptr),
        out_(context.scratch.value(node.outputs[0])),
        kv_shape_(context.graph.kv_shape(node.layer)),
        kv_(context.kv[static_cast<size_t>(kv_shape_.source)]),
        rope_(own.is_sliding_kind ? context.sliding_rope : context.rope),
        rotary_(own.rotary_dim),
        rotates_neighbours_(own.rotates_neighbours),
        heads_(context.graph.num_heads),
        kv_heads_(kv_shape_.kv_heads),
        head_dim_(kv_shape_.head_dim),
        query_stride_(own.has_output_gate ? 2 * head_dim_ : head_dim_),
        has_gate_(own.has_output_gate),
        group_(heads_ / kv_heads_),
        scale_(static_cast<float>(own.scale)),
        eps_(static_cast<float>(own.eps)),
        clip_(static_cast<float>(own.clip)),
        window_(static_cast<int32_t>(std::min<int64_t>(own.window, INT32_MAX))),
        norm_(head_norm(node)),
        norms_values_(own.norms_values) {
    add_phase("write", &PlannedAttention::write_pieces, &PlannedAttention::write);
    if (kv_.closes_blocks) {
      add_phase("close", &PlannedAttention::close_pieces, &PlannedAttention::close);
    }
    add_phase("attend", &PlannedAttention::attend_pieces, &PlannedAttention::attend_piece);
    add_phase("quantize", &PlannedAttention::quantize_pieces, &PlannedAttention::quantize);
    const auto found = context.scratch.head_projections.find(node.layer);
    if (norm_ != HeadNorm::kWholeRow && found != context.scratch.head_projections.end()) {
      projections_ = found->second;
      projections_->hand_over();
    }
    const std::string& sinks = own.sinks;
    if (!sinks.empty()) sinks_ = context.weights.vector(sinks, heads_);
    if (norm_ == HeadNorm::kNone) return;
    const bool whole = norm_ == HeadNorm::kWholeRow;
    query_norm_ = context.weights.vector(own.query_norm, whole ? query_.width : head_dim_);
    if (key_ == nullptr) return;
    key_norm_ = context.weights.vector(own.key_norm, whole ? key_->width : head_dim_);
  }

  /// Positions and cache, per token and kv head. Whole-row norms need every head before any is
  /// rewritten, so a row is one piece then.
  int64_t write_pieces(const StepState& step) const {
    if (norm_ == HeadNorm::kWholeRow) return step.tokens;
    return step.one_token_each ? 0 : divide_up(step.tokens, kTokensPerPiece) * kv_heads_;
  }
  void write(const StepState& step, int64_t piece) const {
    if (norm_ == HeadNorm::kWholeRow) return prepare_whole_row(step, piece);
    const int64_t kv_head = piece % kv_heads_;
    const int64_t first = piece / kv_heads_ * kTokensPerPiece;
    const int64_t end = std::min<int64_t>(step.tokens, first + kTokensPerPiece);
    for (int64_t token = first; token < end; ++token) prepare(step, token, kv_head);
  }
  /// Blocks that the step's tokens fill, per kv head. Where no token attends to another one, each
  /// head closes its own behind its write.
  int64_t close_pieces(const StepState& step) const {
    if (key_ == nullptr || closes_at_once(step)) return 0;
    int64_t ends = 0;
    for (int64_t token = 0; token < step.tokens; ++token) ends += ends_block(step, token) ? 1 : 0;
    return ends * kv_heads_;
  }
  void close(const StepState& step, int64_t piece) const {
    int64_t left = piece / kv_heads_, token = 0;
    for (;; ++token) {
      if (ends_block(step, token) && left-- == 0) break;
    }
    close_blocks(step, token, kv_, static_cast<int32_t>(piece % kv_heads_));
  }
  /// Attention, per kv head and tile of tokens, in a step of one token behind that head's
  /// projections. Consecutive pieces walk the tokens of one head, so that its blocks stay in cache;
  /// the last tokens, which see most, come first.
  int64_t attend_pieces(const StepState& step) const {
    return divide_up(step.tokens, tile_tokens(step)) * kv_heads_;
  }
  void attend_piece(const StepState& step, int64_t piece) const {
    const int64_t size = tile_tokens(step), tiles = divide_up(step.tokens, size);
    const int64_t kv_head = piece / tiles;
    const int64_t first = (tiles - 1 - piece % tiles) * size;
    if (projections_ != nullptr && projections_->go_by_head(step)) projections_->run_head(kv_head);
    if (step.one_token_each && norm_ != HeadNorm::kWholeRow) prepare(step, first, kv_head);
    const int64_t end = std::min<int64_t>(step.tokens, first + size);
    attend(step, first, end, kv_head);
    if (kv_.kernels.transform_output != nullptr) turn_outputs_back(first, end, kv_head);
    if (has_gate_) apply_gates(first, end, kv_head);
    if (!spans_quantizable()) return;
    const int64_t span = group_ * head_dim_;
    for (int64_t token = first; token < end; ++token) {
      out_.quantize(kernel_, token, kv_head * span, (kv_head + 1) * span);
    }
  }
  /// Whole rows, where a head group's span is no multiple of the group size.
  int64_t quantize_pieces(const StepState& step) const {
    return spans_quantizable() ? 0 : divide_up(step.tokens, kTokensPerPiece);
  }
  void quantize(const StepState& step, int64_t piece) const {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) {
      out_.quantize(kernel_, token);
    }
  }

  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".rope+kv_write+attention_" + kv_.codec;
  }

 private:
  static constexpr int64_t kTokensPerPiece = 8;

  /// Where each token is of another sequence, nothing is read together.
  int64_t tile_tokens(const StepState& step) const {
    return step.one_token_each ? 1 : std::max<int64_t>(1, kernels::kQueriesAtOnce / group_);
  }

  bool spans_quantizable() const {
    const int32_t largest = out_.largest_group();
    return largest == 0 || (group_ * head_dim_) % largest == 0;
  }

  void prepare_whole_row(const StepState& step, int64_t token) const {
    kernel_.rms_norm(query_.row(token), query_norm_, eps_, query_.width, query_.row(token));
    kernel_.rms_norm(key_->row(token), key_norm_, eps_, key_->width, key_->row(token));
    for (int64_t kv_head = 0; kv_head < kv_heads_; ++kv_head) prepare(step, token, kv_head);
  }

  void clamp(float* head) const {
    if (clip_ <= 0) return;
    for (int64_t i = 0; i < head_dim_; ++i) head[i] = std::clamp(head[i], -clip_, clip_);
  }

  void rotate(float* head, const float* cos, const float* sin) const {
    if (rotary_ == 0) return;
    rotate_head(kernel_, head, cos, sin, rotary_, rotates_neighbours_);
  }

  bool closes_at_once(const StepState& step) const {
    return step.one_token_each && norm_ != HeadNorm::kWholeRow;
  }
  bool ends_block(const StepState& step, int64_t token) const {
    return kv_.ends_block(step.positions[token]);
  }

  // Norms, clamps and rotates the heads of one group, and writes its key and value where they are
  // this layer's.
  void prepare(const StepState& step, int64_t token, int64_t kv_head) const {
    const int32_t position = step.positions[token];
    const float* cos = rope_.cos + position * rope_.half;
    const float* sin = rope_.sin + position * rope_.half;
    for (int64_t i = 0; i < group_; ++i) {
      float* head = query_.row(token) + (kv_head * group_ + i) * query_stride_;
      if (norm_ == HeadNorm::kPerHead) kernel_.rms_norm(head, query_norm_, eps_, head_dim_, head);
      clamp(head);
      rotate(head, cos, sin);
      if (kv_.kernels.transform_query != nullptr) {
        kv_.kernels.transform_query(kv_.view, static_cast<int32_t>(kv_head), head);
      }
    }
    if (key_ == nullptr) return;  // they are another layer's
    float* key = key_->row(token) + kv_head * head_dim_;
    if (norm_ == HeadNorm::kPerHead) kernel_.rms_norm(key, key_norm_, eps_, head_dim_, key);
    clamp(key);
    rotate(key, cos, sin);
    float* value = value_->row(token) + kv_head * head_dim_;
    if (norms_values_) kernel_.rms_norm(value, nullptr, eps_, head_dim_, value);
    clamp(value);
    const kernels::KvView& kv = kv_.view;
    for_each_place(step, token, kv_, [&](int32_t block, int32_t offset) {
      kv_.kernels.write(kv, block, offset, static_cast<int32_t>(kv_head), key, value);
    });
    if (closes_at_once(step) && ends_block(step, token)) {
      close_blocks(step, token, kv_, static_cast<int32_t>(kv_head));
    }
  }

  /// Tokens begin … end - 1: those of one sequence together.
  void attend(const StepState& step, int64_t begin, int64_t end, int64_t kv_head) const {
    const int64_t first = kv_head * group_ * head_dim_;
    const int64_t first_query = kv_head * group_ * query_stride_;
    while (begin < end) {
      const int64_t next = end_of_sequence(step, begin, end);
      kernels::AttentionSpan span;
      span.block_table = step.block_tables[begin] + kv_.table_offset;
      span.open_table = step.block_tables[begin] + kv_.open_offset;
      span.kv_head = static_cast<int32_t>(kv_head);
      span.position = step.positions[begin];
      span.tokens = static_cast<int32_t>(next - begin);
      span.heads = static_cast<int32_t>(group_);
      span.scale = scale_;
      span.window = window_;
      if (sinks_ != nullptr) span.sinks = sinks_ + kv_head * group_;
      span.query = query_.row(begin) + first_query;
      span.query_stride = query_stride_;
      span.out_stride = head_dim_;
      span.query_token_stride = query_.width;
      span.out = out_.row(begin) + first;
      span.out_token_stride = out_.width;
      kv_.kernels.attend(kv_.view, span);
      begin = next;
    }
  }

  void turn_outputs_back(int64_t begin, int64_t end, int64_t kv_head) const {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
        kv_.kernels.transform_output(kv_.view, static_cast<int32_t>(kv_head),
                                     out_.row(token) + head * head_dim_);
      }
    }
  }

  /// Each head's output times the sigmoid of what stands behind its query.
  void apply_gates(int64_t begin, int64_t end, int64_t kv_head) const {
    for (int64_t token = begin; token < end; ++token) {
      for (int64_t head = kv_head * group_; head < (kv_head + 1) * group_; ++head) {
        const float* gate = query_.row(token) + head * query_stride_ + head_dim_;
        delta_.multiply_sigmoid(gate, head_dim_, out_.row(token) + head * head_dim_);
      }
    }
  }

  const kernels::CpuKernels& kernel_;
  const kernels::DeltaKernels& delta_;
  RowBuffer& query_;
  RowBuffer* key_;  // null where keys and values are another layer's
  RowBuffer* value_;
  RowBuffer& out_;
  KvShape kv_shape_;
  const KvLayer& kv_;
  RopeTables rope_;
  int64_t rotary_;
  bool rotates_neighbours_;
  int64_t heads_, kv_heads_, head_dim_;
  int64_t query_stride_;  // from head to head
  bool has_gate_;
  int64_t group_;
  float scale_, eps_, clip_;
  int32_t window_;
  const float* sinks_ = nullptr;  // [heads]
  HeadNorm norm_;
  bool norms_values_;
  HeadProjections* projections_ = nullptr;  // null where a head's norm needs all of the row
  const float* query_norm_ = nullptr;
  const float* key_norm_ = nullptr;
};

std::unique_ptr<PlannedOp> plan_attention(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedAttention>(context, node, node.as<AttentionParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"attention", plan_attention}));

}  // namespace
}  // namespace vitrine::ops
