// SPDX-License-Identifier: Apache-2.0
// attribution: the dots of every kept vector with the directions of the chosen token and of the
// runner-up.
#include <iterator>
#include <vector>

#include "backend_torch/torch_op.h"
#include "backend_torch/upload.h"
#include "ops/attribution.h"

namespace vitrine::backend_torch {
namespace {

// [vectors, …] of vectors of one shape; at::stack calls something for each.
at::Tensor joined(const std::vector<at::Tensor>& vectors) {
  return at::cat(vectors, 0).unflatten(0, {std::ssize(vectors), vectors[0].size(0)});
}

// What a norm multiplies its input with, for each expert: [experts, tokens, hidden].
at::Tensor norm_factors(const ReferenceNorms& norms) {
  const at::Tensor x = joined(norms.inputs);
  const at::Tensor scale = x.mul(x).mean(-1, /*keepdim=*/true).add(norms.eps).rsqrt();
  return scale.mul(joined(norms.weights).unsqueeze(1));
}

// [streams + experts, tokens, hidden] each as it was added to the stream.
at::Tensor kept_vectors(const ReferenceAttribution& kept) {
  if (kept.outer.inputs.empty()) {
    std::vector<at::Tensor> all = kept.streams;
    all.insert(all.end(), kept.experts.begin(), kept.experts.end());
    return joined(all);
  }
  at::Tensor experts = joined(kept.experts).mul(norm_factors(kept.outer));
  if (!kept.inner.inputs.empty()) experts = experts.mul(norm_factors(kept.inner));
  return at::cat({joined(kept.streams), experts}, 0);
}

// [streams + experts, 1]: the layers' scalars that multiply each on its way to the stream's end.
at::Tensor scalar_factors(const ReferenceAttribution& kept) {
  const at::Tensor scalars = at::cat(kept.scalars, 0);
  const at::Tensor later =
      at::cat({at::flip(at::cumprod(at::flip(scalars, {0}), 0), {0}), at::ones_like(scalars)}, 0);
  std::vector<int64_t> before = kept.stream_scalars;
  before.insert(before.end(), kept.expert_scalars.begin(), kept.expert_scalars.end());
  return at::index_select(later, 0, upload(before, at::kLong, scalars.device())).unsqueeze(1);
}

// A number of calls that does not depend on the number of layers.
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
  const at::Tensor parts = at::index_select(kept_vectors(kept), 1, step.row_tokens).unsqueeze(0);
  kept.dots = parts.mul(rows.mul(norm).mul(scale)).sum(-1);
  if (!kept.scalars.empty()) kept.dots = kept.dots.mul(scalar_factors(kept));
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"attribution", reference_attribution_head}));

}  // namespace
}  // namespace vitrine::backend_torch
