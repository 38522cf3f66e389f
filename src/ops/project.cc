// SPDX-License-Identifier: Apache-2.0
// project: a linear op whose result is added to the residual stream, times a multiplier
// (granitemoe), with what adapters add to it. The attention's output projection.
#include <algorithm>
#include <array>

#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedProject final : public PlannedOp {
 public:
  PlannedProject(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.value(node.inputs[0])),
        residual_(context.value(node.outputs[0])),
        weight_(context.weights.matrix(node.weight("weight"), residual_.width, in_.width)),
        multiplier_(static_cast<float>(node.attribute("multiplier", 1.0))),
        low_rank_(context, in_,
                  std::array{LowRankProducts::Product{&residual_, node.weight("weight")}},
                  node.attribute("multiplier", 1.0)),
        piece_rows_(rows_per_piece(residual_.width, context.threads, kernels::kTileRows)) {
    const std::string& bias = node.weight("bias");
    if (!bias.empty()) bias_ = context.weights.vector(bias, residual_.width);
    context.need(in_, weight_);
  }

  // 0: the projection, and the first half of what adapters add. 1: the second half.
  int phases() const override { return 2; }
  int64_t pieces(const StepState& step, int phase) const override {
    return (phase == 0 ? num_pieces() : 0) + low_rank_.pieces(step, phase);
  }
  void run(const StepState& step, int phase, int64_t piece) override {
    if (phase == 1) return low_rank_.run(step, 1, piece);
    if (piece >= num_pieces()) return low_rank_.run(step, 0, piece - num_pieces());
    kernels::RowMap rows;
    rows.count = step.tokens;
    products_.linear(
        weight_, piece * piece_rows_, std::min(residual_.width, (piece + 1) * piece_rows_),
        activations(in_, weight_), rows, bias_, &multiplier_, residual_.data, residual_.width);
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + "." + weight_kernel_name(weight_) + "+residual" +
           (low_rank_.empty() ? "" : "+low_rank");
  }
  uint64_t weight_bytes() const override {
    return ops::weight_bytes(weight_) + low_rank_.weight_bytes();
  }

 private:
  int64_t num_pieces() const { return divide_up(residual_.width, piece_rows_); }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  RowBuffer& residual_;
  const kernels::Weight& weight_;
  const float* bias_ = nullptr;
  float multiplier_;
  LowRankProducts low_rank_;
  int64_t piece_rows_;
};

std::unique_ptr<PlannedOp> plan_project(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedProject>(context, node);
}

VITRINE_REGISTER_OP((OpDefinition{"project", plan_project}));

}  // namespace
}  // namespace vitrine::ops
