// SPDX-License-Identifier: Apache-2.0
// layer_inputs: a token's vector for each layer; layer_gate: a gate times a layer's vector.
#include "backend_torch/heads.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_layer_inputs(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::LayerInputsParameters>();
  const int64_t width = step.graph->width(node.outputs[0]);
  const at::Tensor projected =
      norm_rows(step.input(node, 0).mul(own.scale).unflatten(-1, {width / own.width, own.width}),
                step.weights->vector(own.norm, own.width), own.eps)
          .flatten(-2);
  const at::Tensor& table = step.weights->matrix(own.table, own.table_rows, width);
  const at::Tensor rows = at::index_select(table, 0, step.token_ids).mul(own.table_scale);
  step.value(node.outputs[0]) = projected.add(rows).mul(own.sum_scale);
}

void reference_layer_gate(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::LayerGateParameters>();
  const int64_t width = step.graph->width(node.outputs[0]);
  const at::Tensor inputs = step.input(node, 1).narrow(-1, own.first, width);
  step.value(node.outputs[0]) = at::gelu(step.input(node, 0), "tanh").mul(inputs);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"layer_inputs", reference_layer_inputs}));
VITRINE_REGISTER_TORCH_OP((TorchOp{"layer_gate", reference_layer_gate}));

}  // namespace
}  // namespace vitrine::backend_torch
