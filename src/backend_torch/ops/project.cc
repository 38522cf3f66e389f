// SPDX-License-Identifier: Apache-2.0
// project: a linear op whose result is added to the residual stream.
#include "backend_torch/low_rank.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_project(ReferenceStep& step, const ops::OpNode& node) {
  const ops::Value& output = step.graph->values[static_cast<size_t>(node.outputs[0])];
  at::Tensor delta = step.linear(step.input(node, 0), node.as<ops::ProjectParameters>().matrix,
                                 output.width, node.as<ops::ProjectParameters>().bias);
  at::Tensor& residual = step.value(node.outputs[0]);
  residual = residual.add(delta, node.as<ops::ProjectParameters>().multiplier);
  add_low_rank(step, step.input(node, 0), node.as<ops::ProjectParameters>().matrix,
               node.as<ops::ProjectParameters>().multiplier, residual);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"project", reference_project}));

}  // namespace
}  // namespace vitrine::backend_torch
