// SPDX-License-Identifier: Apache-2.0
// post_norm: what a block gives, normed, is added to the residual stream.
#include "backend_torch/heads.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

// The norms that the layer's experts pass; a tensor that is kept costs no call.
void keep_norms(ReferenceStep& step, const ops::OpNode& node, const at::Tensor& branch) {
  ReferenceAttribution& kept = *step.attribution;
  const auto& own = node.as<ops::PostNormParameters>();
  const int64_t width = step.graph->width(node.outputs[0]);
  const auto add = [&](ReferenceNorms& norms, const at::Tensor& input, const std::string& weight) {
    norms.eps = own.eps;
    norms.inputs.resize(kept.experts.size(), input);
    norms.weights.resize(kept.experts.size(), step.weights->vector(weight, width));
  };
  add(kept.outer, branch, own.weight);
  if (own.has_two()) add(kept.inner, step.input(node, 1), own.inner[1]);
}

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
  if (step.attribution != nullptr) keep_norms(step, node, branch);
  at::Tensor& residual = step.value(node.outputs[0]);
  residual = residual.add(norm(branch, own.weight));
  if (own.scalar.empty()) return;
  const at::Tensor& scalar = step.weights->vector(own.scalar, 1);
  residual = residual.mul(scalar);
  if (step.attribution != nullptr) step.attribution->scalars.push_back(scalar);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"post_norm", reference_post_norm}));

}  // namespace
}  // namespace vitrine::backend_torch
