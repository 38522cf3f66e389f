// SPDX-License-Identifier: Apache-2.0
// layer_inputs: a token's vector for each layer, of a projection of its embedding and of a table
// (gemma4's E form); layer_gate: a gate of the stream times the layer's vector.
#include <algorithm>

#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

constexpr int64_t kTokensPerPiece = 8;

int64_t token_pieces(const StepState& step) { return divide_up(step.tokens, kTokensPerPiece); }

class PlannedLayerInputs final : public PlannedOp {
 public:
  PlannedLayerInputs(PlanContext& context, const OpNode& node, const LayerInputsParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        own_(own),
        projected_(context.scratch.value(node.inputs[0])),
        out_(context.scratch.value(node.outputs[0])),
        table_(context.weights.matrix(own.table, own.table_rows, out_.width)),
        norm_(context.weights.vector(own.norm, own.width)) {
    add_phase("rows", &PlannedLayerInputs::pieces, &PlannedLayerInputs::run);
  }

  int64_t pieces(const StepState& step) const { return token_pieces(step); }
  void run(const StepState& step, int64_t piece) const {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) make(step, token);
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".rms_norm+embed";
  }
  uint64_t weight_bytes() const override { return ops::weight_bytes(table_) / table_.rows; }

 private:
  void make(const StepState& step, int64_t token) const {
    float* projected = projected_.row(token);
    float* out = out_.row(token);
    const auto scale = static_cast<float>(own_.scale);
    const auto sum_scale = static_cast<float>(own_.sum_scale);
    for (int64_t i = 0; i < out_.width; ++i) projected[i] = projected[i] * scale;
    for (int64_t first = 0; first < out_.width; first += own_.width) {
      kernel_.rms_norm(projected + first, norm_, static_cast<float>(own_.eps), own_.width,
                       projected + first);
    }
    products_.embed_row(table_, step.token_ids[token], static_cast<float>(own_.table_scale), out);
    for (int64_t i = 0; i < out_.width; ++i) out[i] = (projected[i] + out[i]) * sum_scale;
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  const LayerInputsParameters& own_;
  RowBuffer& projected_;
  RowBuffer& out_;
  const kernels::Weight& table_;
  const float* norm_;
};

class PlannedLayerGate final : public PlannedOp {
 public:
  PlannedLayerGate(PlanContext& context, const OpNode& node, const LayerGateParameters& own)
      : kernel_(context.kernel),
        gate_(context.scratch.value(node.inputs[0])),
        inputs_(context.scratch.value(node.inputs[1])),
        out_(context.scratch.value(node.outputs[0])),
        first_(own.first) {
    add_phase("gate", &PlannedLayerGate::pieces, &PlannedLayerGate::run);
  }

  int64_t pieces(const StepState& step) const { return token_pieces(step); }
  void run(const StepState& step, int64_t piece) const {
    constexpr kernels::Gating kGelu{kernels::Gating::Kind::kGeluTanh};
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) {
      kernel_.apply_gating(kGelu, gate_.row(token), inputs_.row(token) + first_, out_.width,
                           out_.row(token));
      out_.quantize(kernel_, token);
    }
  }
  std::string kernel_name() const override { return std::string("cpu.") + kernel_.isa + ".gelu"; }

 private:
  const kernels::CpuKernels& kernel_;
  RowBuffer& gate_;
  RowBuffer& inputs_;
  RowBuffer& out_;
  int64_t first_;
};

std::unique_ptr<PlannedOp> plan_layer_inputs(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedLayerInputs>(context, node, node.as<LayerInputsParameters>());
}
std::unique_ptr<PlannedOp> plan_layer_gate(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedLayerGate>(context, node, node.as<LayerGateParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"layer_inputs", plan_layer_inputs}));
VITRINE_REGISTER_OP((OpDefinition{"layer_gate", plan_layer_gate}));

}  // namespace
}  // namespace vitrine::ops
