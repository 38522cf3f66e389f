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
        only_measures_(node.outputs.empty()),
        out_(only_measures_
                 ? context.scratch.shared_rows("measured", context.shape.max_tokens, in_.width)
                 : context.scratch.value(node.outputs[0])),
        has_weight_(!own.weight.empty()),
        weight_(has_weight_ ? context.weights.vector(own.weight, in_.width) : nullptr),
        eps_(static_cast<float>(own.eps)),
        per_row_(!only_measures_ &&
                 context.graph.values[static_cast<size_t>(node.outputs[0])].per_row) {
    if (has_weight_ && own.weight_scale != 1.0) scale_weight(context, own);
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
    if (only_measures_ && !step.audit) return 0;
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
    if (!has_weight_) return {};
    return std::as_bytes(std::span(weight_, static_cast<size_t>(in_.width)));
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa +
           (out_.quantized.empty() ? ".rms_norm" : ".rms_norm+quantize");
  }
  uint64_t weight_bytes() const override {
    return has_weight_ ? static_cast<uint64_t>(in_.width) * 4 : 0;
  }

 private:
  void scale_weight(PlanContext& context, const NormParameters& own) {
    const auto scale = static_cast<float>(own.weight_scale);
    auto* scaled = context.scratch.array<float>(in_.width);
    const bool is_read = context.weights.holds_numbers();
    for (int64_t i = 0; is_read && i < in_.width; ++i) scaled[i] = weight_[i] * scale;
    weight_ = scaled;
  }

  static constexpr int64_t kRowsPerPiece = 8;
  const kernels::CpuKernels& kernel_;
  RowBuffer& in_;
  bool only_measures_;
  RowBuffer& out_;
  bool has_weight_;
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
