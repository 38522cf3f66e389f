// SPDX-License-Identifier: Apache-2.0
// combine: adds a layer's experts to the residual stream.
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_combine(ReferenceStep& step, const ops::OpNode& node) {
  at::Tensor sum = step.input(node, 0);
  if (node.inputs.size() > 2) {
    at::Tensor shared = step.input(node, 2);
    const std::string& gate = node.as<ops::CombineParameters>().shared_gate;
    if (!gate.empty()) shared = shared.mul(at::sigmoid(step.linear(step.input(node, 1), gate, 1)));
    if (step.attribution != nullptr) step.attribution->keep_expert(shared);
    sum = sum.add(shared);
  }
  at::Tensor& residual = step.value(node.outputs[0]);
  if (!node.as<ops::CombineParameters>().adds_to_residual) {
    residual = sum;
    return;
  }
  residual = residual.add(sum, node.as<ops::CombineParameters>().multiplier);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"combine", reference_combine}));

}  // namespace
}  // namespace vitrine::backend_torch
