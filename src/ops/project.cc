// SPDX-License-Identifier: Apache-2.0
// project: a linear op, with what adapters add to it. Its result is added to the residual stream,
// times a multiplier (granitemoe), or stands by itself. The attention's output projection.
#include <algorithm>
#include <array>

#include "ops/decoder_ops.h"
#include "ops/formed_input.h"
#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedProject final : public PlannedOp {
 public:
  PlannedProject(PlanContext& context, const OpNode& node, const ProjectParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.scratch.value(node.inputs[0])),
        out_(context.scratch.value(node.outputs[0])),
        formed_in_(kernel_, in_, "project"),
        weight_(*formed_in_.need(context.scratch,
                                 context.weights.formed_matrix(own.matrix, out_.width, in_.width))),
        multiplier_(static_cast<float>(own.multiplier)),
        adds_(own.adds_to_residual),
        low_rank_(context, in_, std::array{LowRankProducts::Product{&out_, own.matrix}},
                  adds_ ? multiplier_ : 1.0),
        piece_rows_(rows_per_piece(out_.width, context.shape.threads, kernels::kTileRows)) {
    const std::string& bias = own.bias;
    if (!bias.empty()) bias_ = context.weights.vector(bias, out_.width);
    add_phase(formed_in_.phase());
    add_phase(low_rank_.first_half(
        make_phase(this, "project", &PlannedProject::num_pieces, &PlannedProject::multiply)));
    add_phase(low_rank_.second_half());
  }

  void multiply(const StepState& step, int64_t piece) const {
    kernels::RowMap rows;
    rows.count = step.tokens;
    products_.linear(weight_, piece * piece_rows_, std::min(out_.width, (piece + 1) * piece_rows_),
                     formed_in_.activations(weight_), rows, bias_, adds_ ? &multiplier_ : nullptr,
                     out_.data, out_.width);
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + "." + weight_kernel_name(weight_) +
           formed_in_.kinds().name() + (adds_ ? "+residual" : "") +
           (low_rank_.empty() ? "" : "+low_rank");
  }
  uint64_t weight_bytes() const override {
    return ops::weight_bytes(weight_) + low_rank_.weight_bytes();
  }

 private:
  int64_t num_pieces(const StepState&) const { return divide_up(out_.width, piece_rows_); }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  RowBuffer& out_;
  FormedInput formed_in_;
  const kernels::Weight& weight_;
  const float* bias_ = nullptr;
  float multiplier_;
  bool adds_;
  LowRankProducts low_rank_;
  int64_t piece_rows_;
};

std::unique_ptr<PlannedOp> plan_project(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedProject>(context, node, node.as<ProjectParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"project", plan_project}));

}  // namespace
}  // namespace vitrine::ops
