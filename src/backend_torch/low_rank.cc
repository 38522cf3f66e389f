// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/low_rank.h"

namespace vitrine::backend_torch {

void add_low_rank(ReferenceStep& step, const at::Tensor& x, const std::string& module,
                  double multiplier, at::Tensor& out) {
  for (const ReferenceAdapterRows& of : step.adapter_rows) {
    const TensorLowRank* matrix = step.adapters->find(of.adapter, module);
    if (matrix == nullptr) continue;
    const at::Tensor delta =
        at::index_select(x, 0, of.rows).matmul(matrix->a.t()).matmul(matrix->b.t());
    out = out.index_add(0, of.rows, delta, matrix->scale * multiplier);
  }
}

FeedForwardRows adapted_feed_forward(ReferenceStep& step, const at::Tensor& x,
                                     const FeedForwardModules& modules) {
  const auto project = [&](const at::Tensor& in, const std::string& module, int64_t rows) {
    at::Tensor out =
        step.linear(in, module, rows, modules.has_biases ? module + ".bias" : std::string());
    add_low_rank(step, in, module, 1.0, out);
    return out;
  };
  const at::Tensor gate = project(x, modules.gate, modules.intermediate);
  const at::Tensor up = project(x, modules.up, modules.intermediate);
  at::Tensor hidden;
  if (modules.gating.kind == kernels::Gating::Kind::kSilu) {
    hidden = at::silu(gate).mul(up);
  } else if (modules.gating.kind == kernels::Gating::Kind::kGeluTanh) {
    hidden = at::gelu(gate, "tanh").mul(up);
  } else {
    const double limit = modules.gating.limit, alpha = modules.gating.alpha;
    const at::Tensor g = gate.clamp_max(limit);
    hidden = up.clamp(-limit, limit).add(1.0).mul(g.mul(at::sigmoid(g.mul(alpha))));
  }
  return {hidden, project(hidden, modules.down, modules.width)};
}

}  // namespace vitrine::backend_torch
