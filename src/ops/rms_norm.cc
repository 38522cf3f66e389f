// SPDX-License-Identifier: Apache-2.0
// rms_norm: x * weight / sqrt(mean(x^2) + eps) (Zhang and Sennrich 2019). Quantizes its output for
// the linear ops that read it, and leaves the residual's norm in its audit slot.
#include <cmath>
#include <span>

#include "ops/attribution.h"
#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedRmsNorm final : public PlannedOp {
 public:
  PlannedRmsNorm(PlanContext& context, const OpNode& node, const NormParameters& own)
      : kernel_(context.kernel),
        in_(context.scratch.value(node.inputs[0])),
        out_(context.scratch.value(node.outputs[0])),
        weight_(context.weights.vector(own.weight, in_.width)),
        eps_(static_cast<float>(own.eps)),
        per_row_(context.graph.values[static_cast<size_t>(node.outputs[0])].per_row) {
    if (own.is_recorded(node)) {
      for (const auto& layer : context.audit.layers) {
        if (layer.layer == node.layer) slot_ = layer.residual_norm;
      }
      token_bytes_ = static_cast<size_t>(context.audit.token_words) * 4;
    }
    if (node.layer < 0 && per_row_) mean_squares_ = final_mean_squares(context);
    add_phase("norm", &PlannedRmsNorm::pieces, &PlannedRmsNorm::run);
  }

  int64_t pieces(const StepState& step) const {
    return divide_up(per_row_ ? step.rows : step.tokens, kRowsPerPiece);
  }
  void run(const StepState& step, int64_t piece) const {
    const int64_t count = per_row_ ? step.rows : step.tokens;
    const int64_t end = std::min<int64_t>(count, (piece + 1) * kRowsPerPiece);
    for (int64_t row = piece * kRowsPerPiece; row < end; ++row) {
      const int64_t source = per_row_ ? step.row_tokens[row] : row;
      const float mean_square =
          kernel_.rms_norm(in_.row(source), weight_, eps_, in_.width, out_.row(row));
      out_.quantize(kernel_, row);
      if (mean_squares_ != nullptr) mean_squares_[row] = mean_square;
      if (step.audit && slot_ >= 0) {
        auto* record =
            reinterpret_cast<float*>(step.token_records + static_cast<size_t>(row) * token_bytes_);
        record[slot_] = std::sqrt(mean_square * static_cast<float>(in_.width));
      }
    }
  }
  std::span<const std::byte> leader_weights() const override {
    return std::as_bytes(std::span(weight_, static_cast<size_t>(in_.width)));
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa +
           (out_.quantized.empty() ? ".rms_norm" : ".rms_norm+quantize");
  }
  uint64_t weight_bytes() const override { return static_cast<uint64_t>(in_.width) * 4; }

 private:
  static constexpr int64_t kRowsPerPiece = 8;
  const kernels::CpuKernels& kernel_;
  RowBuffer& in_;
  RowBuffer& out_;
  const float* weight_;
  float eps_;
  bool per_row_;
  float* mean_squares_ = nullptr;  // [rows], of the final norm where attribution asks
  int32_t slot_ = -1;
  size_t token_bytes_ = 0;
};

std::unique_ptr<PlannedOp> plan_rms_norm(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedRmsNorm>(context, node, node.as<NormParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"rms_norm", plan_rms_norm}));

}  // namespace
}  // namespace vitrine::ops
