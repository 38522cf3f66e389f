// SPDX-License-Identifier: Apache-2.0
// post_norm: what a block gives is normed, then added to the residual stream, which is multiplied
// with the layer's scalar where it has one (gemma4). Of two branches (a dense block beside experts)
// each is normed, then their sum.
#include <algorithm>

#include "ops/attribution.h"
#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedPostNorm final : public PlannedOp {
 public:
  PlannedPostNorm(PlanContext& context, const OpNode& node, const PostNormParameters& own)
      : kernel_(context.kernel),
        first_(context.scratch.value(node.inputs[0])),
        residual_(context.scratch.value(node.outputs[0])),
        weight_(context.weights.vector(own.weight, residual_.width)),
        has_scalar_(!own.scalar.empty()),
        eps_(static_cast<float>(own.eps)),
        mean_squares_(post_norm_mean_squares(context)) {
    if (own.has_two()) {
      second_ = &context.scratch.value(node.inputs[1]);
      for (size_t i = 0; i < inner_.size(); ++i) {
        inner_[i] = context.weights.vector(own.inner[i], residual_.width);
      }
    }
    if (has_scalar_) scalar_ = context.weights.vector(own.scalar, 1);
    add_phase("norm", &PlannedPostNorm::pieces, &PlannedPostNorm::run);
  }

  int64_t pieces(const StepState& step) const { return divide_up(step.tokens, kTokensPerPiece); }
  void run(const StepState& step, int64_t piece) const {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) add(token);
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".rms_norm+residual" +
           (has_scalar_ ? "+scalar" : "");
  }
  uint64_t weight_bytes() const override {
    return static_cast<uint64_t>(residual_.width) * (second_ != nullptr ? 3 : 1) * sizeof(float);
  }

 private:
  static constexpr int64_t kTokensPerPiece = 8;

  /// The branches are this op's own to overwrite.
  void add(int64_t token) const {
    const int64_t n = residual_.width;
    float* branch = first_.row(token);
    float* residual = residual_.row(token);
    float mean_squares[kPostNormMeanSquares] = {};
    if (second_ != nullptr) {
      float* other = second_->row(token);
      mean_squares[1] = kernel_.rms_norm(branch, inner_[0], eps_, n, branch);
      mean_squares[2] = kernel_.rms_norm(other, inner_[1], eps_, n, other);
      kernel_.add_scaled(other, 1.0F, n, branch);
    }
    mean_squares[0] = kernel_.rms_norm(branch, weight_, eps_, n, branch);
    if (mean_squares_ != nullptr) {
      std::copy_n(mean_squares, kPostNormMeanSquares, mean_squares_ + token * kPostNormMeanSquares);
    }
    kernel_.add_scaled(branch, 1.0F, n, residual);
    for (int64_t i = 0; has_scalar_ && i < n; ++i) residual[i] = residual[i] * *scalar_;
    residual_.quantize(kernel_, token);
  }

  const kernels::CpuKernels& kernel_;
  RowBuffer& first_;
  RowBuffer* second_ = nullptr;
  RowBuffer& residual_;
  const float* weight_;
  bool has_scalar_;
  std::array<const float*, 2> inner_{};
  float eps_;
  float* mean_squares_;  // [tokens, kPostNormMeanSquares], where attribution asks
  const float* scalar_ = nullptr;
};

std::unique_ptr<PlannedOp> plan_post_norm(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedPostNorm>(context, node, node.as<PostNormParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"post_norm", plan_post_norm}));

}  // namespace
}  // namespace vitrine::ops
