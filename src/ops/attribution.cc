// SPDX-License-Identifier: Apache-2.0
// attribution_probe: keeps what an op left in the residual stream, or its experts.
#include "ops/attribution.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/op.h"

namespace vitrine::ops {
namespace {

int64_t hidden_size(PlanContext& context) {
  return context.scratch.value(context.graph.nodes[0].outputs[0]).width;
}

// Keeps vectors of the tokens whose logits are asked for.
class PlannedProbe final : public PlannedOp {
 public:
  PlannedProbe(PlanContext& context, const OpNode& node)
      : in_(context.scratch.value(node.inputs[0])),
        hidden_(hidden_size(context)),
        first_(node.as<AttributionProbeParameters>().first),
        vectors_(attribution_vectors(context.graph)) {
    if (node.inputs.size() > 1) shared_ = &context.scratch.value(node.inputs[1]);
    kept_ = kept_vectors(context);
    weights_ = kept_weights(context);
    if (node.as<AttributionProbeParameters>().has_experts())
      routes_ = context.scratch.routes[static_cast<size_t>(node.layer)].get();
    add_phase("copy", &PlannedProbe::pieces, &PlannedProbe::run);
  }

  int64_t pieces(const StepState& step) const { return step.audit && step.rows > 0 ? 1 : 0; }
  void run(const StepState& step, int64_t) const {
    for (int32_t row = 0; row < step.rows; ++row) {
      const int64_t token = step.row_tokens[row];
      float* to = kept_ + (row * vectors_ + first_) * hidden_;
      if (to != in_.row(token)) std::copy_n(in_.row(token), in_.width, to);
      to += in_.width;
      if (shared_ != nullptr) std::copy_n(shared_->row(token), hidden_, to);
      if (routes_ == nullptr) continue;
      // The next layer's routes will stand where this layer's do.
      float* weights = weights_ + row * vectors_ + first_;
      weights = std::copy_n(routes_->weights + token * routes_->top_k, routes_->top_k, weights);
      if (shared_ != nullptr) *weights = routes_->shared_weights[token];
    }
  }
  std::string kernel_name() const override { return "cpu.copy"; }

 private:
  RowBuffer& in_;  // the residual stream, or a layer's slots
  RowBuffer* shared_ = nullptr;
  int64_t hidden_, first_, vectors_;
  const RouteBuffer* routes_ = nullptr;
  float* kept_ = nullptr;     // [rows, vectors, hidden]
  float* weights_ = nullptr;  // [rows, vectors]: of experts
};

std::unique_ptr<PlannedOp> plan_probe(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedProbe>(context, node);
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
  for (const AttributionPart& part : attribution_parts(context.graph)) {
    if (part.kind != AuditLayout::Term::Kind::kExpert || part.layer != layer) continue;
    return kept_vectors(context) + part.first * hidden_size(context);
  }
  return nullptr;
}

float* final_mean_squares(PlanContext& context) {
  if (attribution_vectors(context.graph) == 0) return nullptr;
  return context.scratch.shared_array<float>("final_mean_squares", context.shape.max_rows);
}

}  // namespace vitrine::ops
