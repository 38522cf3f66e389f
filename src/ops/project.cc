// SPDX-License-Identifier: Apache-2.0
// project: a linear op whose result is added to the residual stream, times a multiplier
// (granitemoe), with what adapters add to it. The attention's output projection.
#include <algorithm>
#include <array>

#include "ops/decoder_ops.h"
#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedProject final : public PlannedOp {
 public:
  PlannedProject(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.scratch.value(node.inputs[0])),
        residual_(context.scratch.value(node.outputs[0])),
        weight_(context.weights.matrix(node.as<ProjectParameters>().matrix, residual_.width,
                                       in_.width)),
        multiplier_(static_cast<float>(node.as<ProjectParameters>().multiplier)),
        low_rank_(
            context, in_,
            std::array{LowRankProducts::Product{&residual_, node.as<ProjectParameters>().matrix}},
            node.as<ProjectParameters>().multiplier),
        piece_rows_(rows_per_piece(residual_.width, context.shape.threads, kernels::kTileRows)) {
    const std::string& bias = node.as<ProjectParameters>().bias;
    if (!bias.empty()) bias_ = context.weights.vector(bias, residual_.width);
    context.scratch.need(in_, weight_);
    add_phase(low_rank_.first_half(
        make_phase(this, "project", &PlannedProject::num_pieces, &PlannedProject::multiply)));
    add_phase(low_rank_.second_half());
  }

  void multiply(const StepState& step, int64_t piece) const {
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
  int64_t num_pieces(const StepState&) const { return divide_up(residual_.width, piece_rows_); }

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
