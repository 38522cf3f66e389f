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
                                     const std::string& gate, const std::string& up,
                                     const std::string& down, int64_t width, int64_t intermediate) {
  at::Tensor gated = step.linear(x, gate, intermediate);
  at::Tensor upped = step.linear(x, up, intermediate);
  add_low_rank(step, x, gate, 1.0, gated);
  add_low_rank(step, x, up, 1.0, upped);
  const at::Tensor hidden = at::silu(gated).mul(upped);
  at::Tensor out = step.linear(hidden, down, width);
  add_low_rank(step, hidden, down, 1.0, out);
  return {hidden, out};
}

}  // namespace vitrine::backend_torch
