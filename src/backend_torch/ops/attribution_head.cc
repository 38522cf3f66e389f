// SPDX-License-Identifier: Apache-2.0
// attribution: the dots of every kept vector with the directions of the chosen token and of the
// runner-up.
#include <vector>

#include "backend_torch/torch_op.h"
#include "ops/attribution.h"

namespace vitrine::backend_torch {
namespace {

// The kept vectors as they are in the stream at its end: layers' scalars behind each multiply it.
std::vector<at::Tensor> scaled_vectors(const ReferenceAttribution& kept) {
  std::vector<at::Tensor> later(kept.scalars.size() + 1);
  for (size_t i = kept.scalars.size(); i-- > 0;) {
    later[i] = later[i + 1].defined() ? kept.scalars[i].mul(later[i + 1]) : kept.scalars[i];
  }
  std::vector<at::Tensor> vectors;
  const auto append = [&](const std::vector<at::Tensor>& from, const std::vector<size_t>& scalars) {
    for (size_t i = 0; i < from.size(); ++i) {
      const at::Tensor& factor = later[scalars[i]];
      vectors.push_back(factor.defined() ? from[i].mul(factor) : from[i]);
    }
  };
  append(kept.streams, kept.stream_scalars);
  append(kept.experts, kept.expert_scalars);
  return vectors;
}

// Where layers have no scalars, a number of calls that does not depend on the number of layers.
void reference_attribution_head(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::AttributionParameters>();
  if (step.attribution == nullptr) return;
  ReferenceAttribution& kept = *step.attribution;
  const at::Tensor stream = at::index_select(step.input(node, 0), 0, step.row_tokens);
  const int64_t hidden = stream.size(1);
  const at::Tensor& head = step.weights->matrix(own.matrix, step.graph->vocab_size, hidden);
  const at::Tensor& norm = step.weights->vector(own.norm, hidden);
  const at::Tensor chosen = step.chosen_ids.clamp_min(0);
  const at::Tensor first = step.top_ids.select(1, 0);
  const at::Tensor runner_up = at::where(first.eq(chosen), step.top_ids.select(1, 1), first);
  const at::Tensor rows = at::index_select(head, 0, at::cat({chosen, runner_up}, 0))
                              .view({2, 1, stream.size(0), hidden});
  const at::Tensor scale =
      stream.mul(stream).mean(-1, /*keepdim=*/true).add(own.eps).rsqrt().mul(own.multiplier);
  const std::vector<at::Tensor> vectors = scaled_vectors(kept);
  const at::Tensor all =
      at::cat(vectors, 0)
          .view({1, static_cast<int64_t>(vectors.size()), step.token_ids.size(0), hidden});
  const at::Tensor parts = at::index_select(all, 2, step.row_tokens);
  kept.dots = parts.mul(rows.mul(norm).mul(scale)).sum(-1);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"attribution", reference_attribution_head}));

}  // namespace
}  // namespace vitrine::backend_torch
