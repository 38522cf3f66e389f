// SPDX-License-Identifier: Apache-2.0
// qkv: the query, key and value projections of one normed input, with optional biases, and what
// adapters add to them.
#include <algorithm>
#include <array>

#include "ops/decoder_ops.h"
#include "ops/formed_input.h"
#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

std::array<LowRankProducts::Product, 3> low_rank_products(PlanContext& context,
                                                          const OpNode& node) {
  std::array<LowRankProducts::Product, 3> products;
  for (size_t i = 0; i < 3; ++i) {
    products[i] = {&context.scratch.value(node.outputs[i]), node.as<QkvParameters>().matrices[i]};
  }
  return products;
}

class PlannedQkv final : public PlannedOp, public HeadProjections {
 public:
  PlannedQkv(PlanContext& context, const OpNode& node, const QkvParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.scratch.value(node.inputs[0])),
        formed_in_(kernel_, in_, "qkv"),
        low_rank_(context, in_, low_rank_products(context, node), 1.0) {
    int64_t all_rows = 0;
    for (size_t i = 0; i < 3; ++i) {
      Part& part = parts_[i];
      part.out = &context.scratch.value(node.outputs[i]);
      part.weight = formed_in_.need(
          context.scratch,
          context.weights.formed_matrix(own.matrices[i], part.out->width, in_.width));
      const std::string& bias = own.biases[i];
      if (!bias.empty()) part.bias = context.weights.vector(bias, part.out->width);
      all_rows += part.out->width;
    }
    piece_rows_ = rows_per_piece(all_rows, context.shape.threads, kernels::kTileRows);
    for (Part& part : parts_) {
      part.first_piece = num_pieces_;
      num_pieces_ += divide_up(part.out->width, piece_rows_);
    }
    kv_heads_ = context.graph.kv_shape(node.layer).kv_heads;
    can_go_by_head_ = context.shape.threads > 1 && kv_heads_ % context.shape.threads == 0 &&
                      low_rank_.empty() && barrier_shows(weight_bytes(), context.shape.threads);
    for (const Part& part : parts_) {
      can_go_by_head_ = can_go_by_head_ && part.out->width % (kv_heads_ * kernels::kTileRows) == 0;
    }
    context.scratch.head_projections[node.layer] = this;
    add_phase(formed_in_.phase());
    add_phase(low_rank_.first_half(
        make_phase(this, "project", &PlannedQkv::num_pieces, &PlannedQkv::multiply)));
    add_phase(low_rank_.second_half());
  }

  /// None where attention asks for a head's.
  int64_t num_pieces(const StepState& step) const { return go_by_head(step) ? 0 : num_pieces_; }
  void multiply(const StepState& step, int64_t piece) const {
    const Part& part = piece >= parts_[2].first_piece   ? parts_[2]
                       : piece >= parts_[1].first_piece ? parts_[1]
                                                        : parts_[0];
    const int64_t begin = (piece - part.first_piece) * piece_rows_;
    project(part, begin, std::min(part.out->width, begin + piece_rows_), step.tokens);
  }
  void hand_over() override { is_handed_over_ = can_go_by_head_; }
  bool go_by_head(const StepState& step) const override {
    return is_handed_over_ && step.tokens == 1;
  }
  void run_head(int64_t kv_head) const override {
    for (const Part& part : parts_) {
      const int64_t rows = part.out->width / kv_heads_;
      project(part, kv_head * rows, (kv_head + 1) * rows, 1);
    }
  }
  std::string kernel_name() const override {
    std::string name = std::string("cpu.") + kernel_.isa + ".";
    for (size_t i = 0; i < 3; ++i) {
      const std::string part = weight_kernel_name(*parts_[i].weight);
      if (i == 0 || part != weight_kernel_name(*parts_[i - 1].weight)) {
        name += (i == 0 ? "" : "+") + part;
      }
    }
    return name + formed_in_.kinds().name() + (low_rank_.empty() ? "" : "+low_rank");
  }
  uint64_t weight_bytes() const override {
    uint64_t bytes = low_rank_.weight_bytes();
    for (const Part& part : parts_) bytes += ops::weight_bytes(*part.weight);
    return bytes;
  }

 private:
  struct Part {
    RowBuffer* out = nullptr;
    const kernels::Weight* weight = nullptr;
    const float* bias = nullptr;
    int64_t first_piece = 0;
  };

  void project(const Part& part, int64_t begin, int64_t end, int32_t tokens) const {
    kernels::RowMap rows;
    rows.count = tokens;
    products_.linear(*part.weight, begin, end, formed_in_.activations(*part.weight), rows,
                     part.bias, nullptr, part.out->data, part.out->width);
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  FormedInput formed_in_;
  LowRankProducts low_rank_;
  std::array<Part, 3> parts_;
  int64_t piece_rows_ = 0;
  int64_t num_pieces_ = 0;
  int64_t kv_heads_ = 1;
  bool can_go_by_head_ = false, is_handed_over_ = false;
};

std::unique_ptr<PlannedOp> plan_qkv(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedQkv>(context, node, node.as<QkvParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"qkv", plan_qkv}));

}  // namespace
}  // namespace vitrine::ops
