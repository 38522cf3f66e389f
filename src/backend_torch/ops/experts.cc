// SPDX-License-Identifier: Apache-2.0
// experts: every routed expert of a layer on all rows.
#include "backend_torch/low_rank.h"
#include "backend_torch/torch_op.h"
#include "ops/adapters.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

// Every expert on all rows, weighted by a scattered [tokens, experts] matrix: no shape depends on a
// value.
void reference_experts(ReferenceStep& step, const ops::OpNode& node) {
  const auto layer = static_cast<size_t>(node.layer);
  const at::Tensor& x = step.input(node, 0);
  const at::Tensor& ids = step.routes_ids[layer];
  const auto& own = node.as<ops::ExpertsParameters>();
  const int64_t experts = own.experts;
  at::Tensor weights =
      at::zeros({x.size(0), experts}, x.options()).scatter(1, ids, step.routes_weights[layer]);
  at::Tensor sum;
  for (int64_t expert = 0; expert < experts; ++expert) {
    at::Tensor out =
        adapted_feed_forward(step, x, own.module(expert, own.gate), own.module(expert, own.up),
                             own.module(expert, own.down), x.size(1), own.intermediate)
            .mul(weights.narrow(1, expert, 1));
    if (step.attribution != nullptr) step.attribution->experts.push_back(out);
    sum = expert == 0 ? out : sum.add(out);
  }
  step.value(node.outputs[0]) = sum;
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"experts", reference_experts}));

}  // namespace
}  // namespace vitrine::backend_torch
