// SPDX-License-Identifier: Apache-2.0
// head: logits of the requested rows and, in its epilogue, what recorder and greedy sampler need:
// log-sum-exp, entropy, the ten best, a digest of the row, the chosen id.
#include <algorithm>
#include <cstring>

#include "kernels/cpu/logits_hash.h"
#include "ops/decoder_ops.h"
#include "ops/formed_input.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedHead final : public PlannedOp {
 public:
  PlannedHead(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.scratch.value(node.inputs[0])),
        vocab_(context.graph.vocab_size),
        formed_in_(kernel_, in_, "head"),
        weight_(*formed_in_.need(
            context.scratch,
            context.weights.formed_matrix(node.as<HeadParameters>().matrix, vocab_, in_.width))),
        multiplier_(static_cast<float>(node.as<HeadParameters>().multiplier)),
        soft_cap_(static_cast<float>(node.as<HeadParameters>().soft_cap)),
        logits_(context.scratch.logits()),
        layout_(context.audit),
        blocks_(divide_up(vocab_, kernels::kHeadBlock)),
        is_by_blocks_(blocks_ >= int64_t{4} * context.shape.threads),
        piece_rows_(is_by_blocks_
                        ? kernels::kHeadBlock
                        : rows_per_piece(vocab_, context.shape.threads * 2, kernels::kTileRows)) {
    kernels::Weight block = weight_;
    block.rows = kernels::kHeadBlock;
    block_bytes_ = static_cast<int64_t>(kernels::packed_bytes(block).data);
    stats_ = context.scratch.array<kernels::HeadBlockStats>(context.shape.max_logits * blocks_);
    add_phase(formed_in_.phase(&StepState::rows));
    add_phase("logits", &PlannedHead::product_pieces, &PlannedHead::multiply);
    add_phase("blocks", &PlannedHead::block_pieces, &PlannedHead::take_piece);
    add_phase("choose", &PlannedHead::last_pieces, &PlannedHead::finish);
  }

  int64_t product_pieces(const StepState& step) const {
    return step.rows == 0 ? 0 : divide_up(vocab_, piece_rows_);
  }
  void multiply(const StepState& step, int64_t piece) const {
    kernels::RowMap rows;
    rows.count = step.rows;
    products_.linear(weight_, piece * piece_rows_, std::min(vocab_, (piece + 1) * piece_rows_),
                     formed_in_.activations(weight_), rows, nullptr, nullptr, logits_, vocab_);
    for (int64_t row = 0; is_by_blocks_ && row < step.rows; ++row) {
      // Most of the time the block behind this one is the next that this thread takes.
      take_block(step, row, piece, row + 1 == step.rows ? weights_of(piece + 1) : nullptr);
    }
  }
  int64_t block_pieces(const StepState& step) const {
    return is_by_blocks_ ? 0 : step.rows * blocks_;
  }
  void take_piece(const StepState& step, int64_t piece) const {
    take_block(step, piece / blocks_, piece % blocks_, nullptr);
  }
  int64_t last_pieces(const StepState& step) const { return step.rows == 0 ? 0 : 1; }
  void finish(const StepState& step, int64_t) const {
    for (int32_t row = 0; row < step.rows; ++row) finish_row(step, row);
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + "." + weight_kernel_name(weight_) +
           formed_in_.kinds().name() + (soft_cap_ > 0 ? "+soft_cap" : "") +
           "+log_sum_exp+top_10+digest";
  }
  uint64_t weight_bytes() const override { return ops::weight_bytes(weight_); }

 private:
  bool records_rows(const StepState& step) const { return step.audit && layout_.row_words > 0; }

  /// Where the weights of a whole block begin; null where there are none in memory, or few.
  const void* weights_of(int64_t block) const {
    const bool is_whole = (block + 1) * kernels::kHeadBlock <= vocab_;
    if (!is_whole || weight_.data == nullptr || block_bytes_ < kernels::kHeadNextBytes) {
      return nullptr;
    }
    return static_cast<const std::byte*>(weight_.data) + block * block_bytes_;
  }

  void take_block(const StepState& step, int64_t row, int64_t block, const void* next) const {
    const int64_t begin = block * kernels::kHeadBlock;
    if (soft_cap_ > 0) {
      kernel_.soft_cap(soft_cap_, std::min<int64_t>(vocab_ - begin, kernels::kHeadBlock),
                       logits_ + row * vocab_ + begin);
    }
    kernel_.head_block(logits_ + row * vocab_, begin,
                       std::min<int64_t>(vocab_, begin + kernels::kHeadBlock), multiplier_,
                       records_rows(step), stats_ + row * blocks_ + block, next);
  }

  void finish_row(const StepState& step, int32_t row) const {
    kernels::HeadStats stats;
    kernel_.head_merge(stats_ + row * blocks_, static_cast<int32_t>(blocks_), &stats);
    const int32_t target = step.row_targets[row];
    const int32_t chosen = target >= 0 ? target : stats.count > 0 ? stats.top_ids[0] : -1;
    step.chosen_ids[row] = chosen;
    if (!records_rows(step)) return;
    std::byte* base =
        step.row_records + static_cast<size_t>(row) * static_cast<size_t>(layout_.row_words) * 4;
    auto* floats = reinterpret_cast<float*>(base);
    auto* words = reinterpret_cast<int32_t*>(base);
    floats[layout_.chosen_logit] = chosen >= 0 ? logits_[row * vocab_ + chosen] : 0.0F;
    floats[layout_.log_sum_exp] = stats.log_sum_exp;
    floats[layout_.entropy] = stats.entropy;
    words[layout_.logits_digest] = static_cast<int32_t>(stats.digest);
    words[layout_.logits_digest + 1] = static_cast<int32_t>(stats.digest >> 32);
    for (int32_t i = 0; i < kAuditTopTokens; ++i) {
      words[layout_.top_ids + i] = i < stats.count ? stats.top_ids[i] : -1;
      floats[layout_.top_logits + i] = i < stats.count ? stats.top_logits[i] : 0.0F;
    }
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  int64_t vocab_;
  FormedInput formed_in_;
  const kernels::Weight& weight_;
  float multiplier_, soft_cap_;
  float* logits_;
  AuditLayout layout_;
  int64_t blocks_;
  bool is_by_blocks_;  // a block's statistics are made with it, while it is at hand
  int64_t piece_rows_;
  int64_t block_bytes_ = 0;
  kernels::HeadBlockStats* stats_ = nullptr;  // [rows, blocks]
};

std::unique_ptr<PlannedOp> plan_head(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedHead>(context, node);
}

VITRINE_REGISTER_OP((OpDefinition{"head", plan_head}));

}  // namespace
}  // namespace vitrine::ops
