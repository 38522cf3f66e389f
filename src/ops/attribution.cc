// SPDX-License-Identifier: Apache-2.0
// attribution_probe: keeps what an op left in the residual stream, or its experts, where they are
// normed before they are added each times the norms' weights and inverse root mean squares.
#include "ops/attribution.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/op.h"

namespace vitrine::ops {
namespace {

int64_t hidden_size(const PlanContext& context) {
  return context.graph.width(context.graph.stream());
}

// Keeps vectors of the tokens whose logits are asked for.
class PlannedProbe final : public PlannedOp {
 public:
  PlannedProbe(PlanContext& context, const OpNode& node, const AttributionProbeParameters& own)
      : in_(context.scratch.value(node.inputs[0])),
        hidden_(hidden_size(context)),
        first_(own.first),
        vectors_(attribution_vectors(context.graph)),
        norms_(own.norms),
        eps_(static_cast<float>(own.eps)) {
    if (node.inputs.size() > 1) shared_ = &context.scratch.value(node.inputs[1]);
    kept_ = kept_vectors(context);
    weights_ = kept_weights(context);
    if (own.has_experts()) routes_ = context.scratch.routes[static_cast<size_t>(node.layer)].get();
    if (!norms_.empty()) take_norms(context);
    add_phase("copy", &PlannedProbe::pieces, &PlannedProbe::run);
  }

  int64_t pieces(const StepState& step) const { return step.audit && step.rows > 0 ? 1 : 0; }
  void run(const StepState& step, int64_t) const {
    for (int32_t row = 0; row < step.rows; ++row) {
      const int64_t token = step.row_tokens[row];
      float* to = kept_ + (row * vectors_ + first_) * hidden_;
      if (to != in_.row(token)) std::copy_n(in_.row(token), in_.width, to);
      if (shared_ != nullptr) std::copy_n(shared_->row(token), hidden_, to + in_.width);
      if (routes_ == nullptr) continue;
      // The next layer's routes will stand where this layer's do.
      float* const weights = weights_ + row * vectors_ + first_;
      float* const last =
          std::copy_n(routes_->weights + token * routes_->top_k, routes_->top_k, weights);
      if (shared_ != nullptr) *last = routes_->shared_weights[token];
      if (!norms_.empty()) pass_norms(token, to, weights);
    }
  }
  std::string kernel_name() const override { return "cpu.copy"; }

 private:
  /// The norms' weights, multiplied with each other.
  void take_norms(PlanContext& context) {
    mean_squares_ = post_norm_mean_squares(context);
    norm_weight_ = context.scratch.array<float>(hidden_);
    std::fill_n(norm_weight_, hidden_, 1.0F);
    for (const PassedNorm& norm : norms_) {
      const float* weight = context.weights.vector(norm.weight, hidden_);
      if (context.weights.holds_numbers()) context.kernel.multiply(weight, hidden_, norm_weight_);
    }
    multiply_ = context.kernel.multiply;
  }

  void pass_norms(int64_t token, float* vectors, float* weights) const {
    float scale = 1;
    for (const PassedNorm& norm : norms_) {
      scale /= std::sqrt(mean_squares_[token * kPostNormMeanSquares + norm.mean_square] + eps_);
    }
    const int64_t count = in_.width / hidden_ + (shared_ != nullptr ? 1 : 0);
    for (int64_t i = 0; i < count; ++i) {
      multiply_(norm_weight_, hidden_, vectors + i * hidden_);
      weights[i] *= scale;
    }
  }

  RowBuffer& in_;  // the residual stream, or a layer's slots
  RowBuffer* shared_ = nullptr;
  int64_t hidden_, first_, vectors_;
  const RouteBuffer* routes_ = nullptr;
  float* kept_ = nullptr;     // [rows, vectors, hidden]
  float* weights_ = nullptr;  // [rows, vectors]: of experts
  std::vector<PassedNorm> norms_;
  float eps_;
  const float* mean_squares_ = nullptr;  // [tokens, kPostNormMeanSquares]
  float* norm_weight_ = nullptr;         // [hidden]
  decltype(kernels::CpuKernels::multiply) multiply_ = nullptr;
};

std::unique_ptr<PlannedOp> plan_probe(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedProbe>(context, node, node.as<AttributionProbeParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{kAttributionProbe, plan_probe}));

}  // namespace

float* kept_vectors(PlanContext& context) {
  return context.scratch.shared_array<float>(
      "attribution",
      context.shape.max_rows * attribution_vectors(context.graph) * hidden_size(context));
}

float* kept_weights(PlanContext& context) {
  return context.scratch.shared_array<float>(
      "attribution_weights", context.shape.max_rows * attribution_vectors(context.graph));
}

float* kept_experts(PlanContext& context, int layer) {
  for (const OpNode& node : context.graph.nodes) {
    const auto* probe = node.find<AttributionProbeParameters>();
    if (probe == nullptr || !probe->has_experts() || node.layer != layer) continue;
    if (!probe->norms.empty()) return nullptr;
    return kept_vectors(context) + probe->first * hidden_size(context);
  }
  return nullptr;
}

float* post_norm_mean_squares(PlanContext& context) {
  if (attribution_vectors(context.graph) == 0) return nullptr;
  return context.scratch.shared_array<float>("post_norm_mean_squares",
                                             context.shape.max_tokens * kPostNormMeanSquares);
}

float* final_mean_squares(PlanContext& context) {
  if (attribution_vectors(context.graph) == 0) return nullptr;
  return context.scratch.shared_array<float>("final_mean_squares", context.shape.max_rows);
}

}  // namespace vitrine::ops
