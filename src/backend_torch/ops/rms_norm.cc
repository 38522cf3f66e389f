// SPDX-License-Identifier: Apache-2.0
// rms_norm: x * weight / sqrt(mean(x^2) + eps).
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_rms_norm(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::NormParameters>();
  const bool only_measures = node.outputs.empty();
  at::Tensor x = step.input(node, 0);
  if (!only_measures && step.graph->values[static_cast<size_t>(node.outputs[0])].per_row) {
    x = at::index_select(x, 0, step.row_tokens);
  }
  at::Tensor mean_square = x.mul(x).mean(-1, /*keepdim=*/true);
  if (own.is_recorded(node)) {
    if (step.audit != nullptr) step.audit->mean_squares.push_back(mean_square);
    step.observe(mean_square);
  }
  if (only_measures) return;
  at::Tensor normed = x.mul(mean_square.add(own.eps).rsqrt());
  if (!own.weight.empty()) normed = normed.mul(step.weights->vector(own.weight, x.size(-1)));
  if (own.weight_scale != 1.0) normed = normed.mul(own.weight_scale);
  step.value(node.outputs[0]) = normed;
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"rms_norm", reference_rms_norm}));

}  // namespace
}  // namespace vitrine::backend_torch
