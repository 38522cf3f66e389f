// SPDX-License-Identifier: Apache-2.0
// experts: every routed expert of a layer on all rows.
#include <vector>

#include "backend_torch/low_rank.h"
#include "backend_torch/torch_op.h"
#include "ops/adapters.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

// [tokens * top_k, width] of each slot's expert, out of each expert's [tokens, width].
at::Tensor rows_of_slots(const std::vector<at::Tensor>& by_expert, const at::Tensor& ids) {
  const at::Tensor all = at::stack(by_expert, 1);
  const at::Tensor index = ids.unsqueeze(2).expand({ids.size(0), ids.size(1), all.size(2)});
  return at::gather(all, 1, index).reshape({-1, all.size(2)});
}

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
  std::vector<at::Tensor> hidden, outputs;  // of each expert, where somebody taps
  for (int64_t expert = 0; expert < experts; ++expert) {
    const FeedForwardRows rows = adapted_feed_forward(
        step, x,
        {own.module(expert, own.gate), own.module(expert, own.up), own.module(expert, own.down),
         x.size(1), own.intermediate, own.has_biases, own.gating});
    if (step.taps != nullptr) {
      hidden.push_back(rows.hidden);
      outputs.push_back(rows.out);
    }
    at::Tensor out = rows.out.mul(weights.narrow(1, expert, 1));
    if (step.attribution != nullptr) step.attribution->keep_expert(out);
    sum = expert == 0 ? out : sum.add(out);
  }
  step.value(node.outputs[0]) = sum;
  if (step.taps == nullptr) return;
  step.own_rows["expert_hidden"] = rows_of_slots(hidden, ids);
  step.own_rows["expert_slots"] = rows_of_slots(outputs, ids);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"experts", reference_experts}));

}  // namespace
}  // namespace vitrine::backend_torch
