// SPDX-License-Identifier: Apache-2.0
// combine: adds a layer's routed experts in slot order, then the shared expert (times the sigmoid
// of its gate), to the residual stream.
#include <algorithm>
#include <cmath>

#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedCombine final : public PlannedOp {
 public:
  PlannedCombine(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        slots_(context.scratch.value(node.inputs[0])),
        in_(context.scratch.value(node.inputs[1])),
        residual_(context.scratch.value(node.outputs[0])),
        routes_(*context.scratch.routes[static_cast<size_t>(node.layer)]),
        multiplier_(static_cast<float>(node.as<CombineParameters>().multiplier)),
        adds_(node.as<CombineParameters>().adds_to_residual) {
    if (node.inputs.size() > 2) shared_ = &context.scratch.value(node.inputs[2]);
    if (shared_ != nullptr) {
      routes_.shared_weights =
          context.scratch.shared_array<float>("shared_weights", context.shape.max_tokens);
    }
    const std::string& gate = node.as<CombineParameters>().shared_gate;
    if (!gate.empty()) {
      gate_ = &context.weights.matrix(gate, 1, in_.width);
      context.scratch.need(in_, *gate_);
    }
    for (const AuditLayout::Layer& layer : context.audit.layers) {
      if (layer.layer == node.layer) norms_word_ = layer.expert_norms;
    }
    token_words_ = context.audit.token_words;
    add_phase("combine", &PlannedCombine::pieces, &PlannedCombine::run);
  }

  int64_t pieces(const StepState& step) const { return divide_up(step.tokens, kTokensPerPiece); }
  void run(const StepState& step, int64_t piece) const {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) {
      float shared_weight = shared_ != nullptr ? 1.0F : 0.0F;
      if (gate_ != nullptr) {
        const auto row = static_cast<int32_t>(token);
        const int32_t first = 0;
        products_.linear(*gate_, 0, 1, activations(in_, *gate_), {&row, &first, 1}, nullptr,
                         nullptr, &shared_weight, 1);
        shared_weight = kernel_.sigmoid(shared_weight);
      }
      if (shared_ != nullptr) routes_.shared_weights[token] = shared_weight;
      if (step.audit && norms_word_ >= 0) record_norms(step, token);
      if (!adds_) std::fill_n(residual_.row(token), residual_.width, 0.0F);
      kernel_.combine(slots_.row(token), residual_.width, routes_.weights + token * routes_.top_k,
                      routes_.top_k, shared_ != nullptr ? shared_->row(token) : nullptr,
                      shared_weight, multiplier_, residual_.width, residual_.row(token));
    }
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + (adds_ ? ".combine+residual" : ".combine");
  }
  uint64_t weight_bytes() const override {
    return gate_ != nullptr ? ops::weight_bytes(*gate_) : 0;
  }

 private:
  static constexpr int64_t kTokensPerPiece = 8;

  // In one order on every instruction set.
  void record_norms(const StepState& step, int64_t token) const {
    auto* const words = reinterpret_cast<float*>(step.token_records) + token * token_words_;
    for (int32_t slot = 0; slot < routes_.top_k; ++slot) {
      const float* const output = slots_.row(token) + slot * residual_.width;
      double squares = 0;
      for (int64_t i = 0; i < residual_.width; ++i) squares += double{output[i]} * output[i];
      words[norms_word_ + slot] = static_cast<float>(std::sqrt(squares));
    }
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& slots_;  // [tokens, top_k * hidden]
  RowBuffer& in_;
  RowBuffer& residual_;
  RowBuffer* shared_ = nullptr;
  RouteBuffer& routes_;
  const kernels::Weight* gate_ = nullptr;
  float multiplier_;
  bool adds_;
  int32_t norms_word_ = -1;  // in a token's record; -1: nobody asks
  int64_t token_words_ = 0;
};

std::unique_ptr<PlannedOp> plan_combine(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedCombine>(context, node);
}

VITRINE_REGISTER_OP((OpDefinition{"combine", plan_combine}));

}  // namespace
}  // namespace vitrine::ops
