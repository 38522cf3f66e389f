// SPDX-License-Identifier: Apache-2.0
// project: a linear op, whose result is added to the residual stream or stands by itself.
#include "backend_torch/low_rank.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_project(ReferenceStep& step, const ops::OpNode& node) {
  const ops::Value& output = step.graph->values[static_cast<size_t>(node.outputs[0])];
  const auto& own = node.as<ops::ProjectParameters>();
  const at::Tensor in = step.input(node, 0);
  at::Tensor product = step.linear(in, own.matrix, output.width, own.bias);
  at::Tensor& out = step.value(node.outputs[0]);
  out = own.adds_to_residual ? out.add(product, own.multiplier) : product;
  add_low_rank(step, in, own.matrix, own.adds_to_residual ? own.multiplier : 1.0, out);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"project", reference_project}));

}  // namespace
}  // namespace vitrine::backend_torch
