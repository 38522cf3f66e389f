// SPDX-License-Identifier: Apache-2.0
// post_norm: what a block gives, normed, is added to the residual stream.
#include "backend_torch/heads.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

// What experts' outputs are multiplied with on their way to the stream: the norms' weights and
// inverse root mean squares.
void norm_kept_experts(ReferenceStep& step, const ops::OpNode& node, const at::Tensor& branch) {
  ReferenceAttribution& kept = *step.attribution;
  if (kept.added == kept.experts.size()) return;
  const auto& own = node.as<ops::PostNormParameters>();
  const int64_t width = step.graph->width(node.outputs[0]);
  const auto factor_of = [&](const at::Tensor& x, const std::string& weight) {
    return x.mul(x)
        .mean(-1, /*keepdim=*/true)
        .add(own.eps)
        .rsqrt()
        .mul(step.weights->vector(weight, width));
  };
  at::Tensor factor = factor_of(branch, own.weight);
  if (own.has_two()) factor = factor.mul(factor_of(step.input(node, 1), own.inner[1]));
  for (; kept.added < kept.experts.size(); ++kept.added) {
    kept.experts[kept.added] = kept.experts[kept.added].mul(factor);
  }
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
  if (step.attribution != nullptr) norm_kept_experts(step, node, branch);
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
