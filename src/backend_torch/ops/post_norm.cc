// SPDX-License-Identifier: Apache-2.0
// post_norm: what a block gives, normed, is added to the residual stream.
#include "backend_torch/heads.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_post_norm(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::PostNormParameters>();
  const int64_t width = step.graph->width(node.outputs[0]);
  const auto norm = [&](const at::Tensor& x, const std::string& weight) {
    return norm_rows(x, step.weights->vector(weight, width), own.eps);
  };
  at::Tensor branch = step.input(node, 0);
  if (own.has_two()) {
    branch = norm(branch, own.inner[0]).add(norm(step.input(node, 1), own.inner[1]));
  }
  at::Tensor& residual = step.value(node.outputs[0]);
  residual = residual.add(norm(branch, own.weight));
  if (!own.scalar.empty()) residual = residual.mul(step.weights->vector(own.scalar, 1));
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"post_norm", reference_post_norm}));

}  // namespace
}  // namespace vitrine::backend_torch
