// SPDX-License-Identifier: Apache-2.0
// router: the probabilities of a layer's experts and the top-k of them.
#include <limits>
#include <tuple>
#include <utility>

#include "backend_torch/low_rank.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

// The ids that are forced, where they are (not -1), and the router's values for all of them.
std::tuple<at::Tensor, at::Tensor> forced_among(const at::Tensor& values, const at::Tensor& ids,
                                                const at::Tensor& forced_ids) {
  at::Tensor all = at::where(forced_ids.ge(0), forced_ids, ids);
  at::Tensor chosen = at::gather(values, -1, all);
  return {std::move(chosen), std::move(all)};
}

// Experts of the best groups; the others' keys become minus infinity.
at::Tensor keep_best_groups(const at::Tensor& keys, const ops::RouterParameters& own) {
  if (own.chosen_groups >= own.groups) return keys;
  const at::Tensor grouped = keys.unflatten(-1, {own.groups, own.shape.experts / own.groups});
  const at::Tensor best = std::get<0>(at::topk(grouped, own.group_score_adds_two ? 2 : 1, -1));
  const at::Tensor chosen = std::get<1>(at::topk(best.sum(-1), own.chosen_groups, -1));
  const at::Tensor kept = at::zeros_like(best.select(-1, 0)).scatter(-1, chosen, 1.0);
  return grouped.masked_fill(kept.eq(0).unsqueeze(-1), -std::numeric_limits<float>::infinity())
      .flatten(-2);
}

// What a router with scores makes of its logits.
struct ScoredRoutes {
  at::Tensor scores;        // [tokens, experts]
  at::Tensor weights, ids;  // [tokens, top_k]
  at::Tensor recorded;      // [tokens, 2 * top_k]: the chosen experts' scores, then their keys
};

ScoredRoutes choose_by_scores(ReferenceStep& step, const at::Tensor& logits,
                              const ops::RouterParameters& own, const at::Tensor* forced_ids) {
  const bool is_softmax = own.score == ops::RouterParameters::Score::kSoftmax;
  at::Tensor scores = is_softmax ? at::softmax(logits, -1) : at::sigmoid(logits);
  const at::Tensor keys = own.correction.empty()
                              ? scores
                              : scores.add(step.weights->vector(own.correction, own.shape.experts));
  at::Tensor ids = std::get<1>(at::topk(keep_best_groups(keys, own), own.shape.top_k, -1));
  if (forced_ids != nullptr) ids = at::where(forced_ids->ge(0), *forced_ids, ids);
  at::Tensor weights = at::gather(scores, -1, ids);
  // This runs where nothing records, too, so that recording adds no call.
  at::Tensor recorded = at::cat({weights, at::gather(keys, -1, ids)}, -1);
  if (own.normalizes) {
    at::Tensor sum = weights.sum(-1, true).add(own.sum_epsilon).clamp_min(own.least_sum);
    weights = weights.div(sum);
  }
  weights = weights.mul(own.scale);
  if (!own.expert_scale.empty()) {
    const at::Tensor& scales = step.weights->vector(own.expert_scale, own.shape.experts);
    weights = weights.mul(at::index_select(scales, 0, ids.flatten()).view_as(ids));
  }
  return {std::move(scores), std::move(weights), std::move(ids), std::move(recorded)};
}

void reference_router(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::RouterParameters>();
  at::Tensor logits = step.linear(step.input(node, 0), own.matrix, own.shape.experts, own.bias);
  add_low_rank(step, step.input(node, 0), own.matrix, 1.0, logits);
  const int64_t k = own.shape.top_k;
  const auto layer = static_cast<size_t>(node.layer);
  const bool is_forced = !step.forced_ids.empty();
  at::Tensor probs, weights, ids, recorded;
  if (own.is_scored()) {
    ScoredRoutes routes =
        choose_by_scores(step, logits, own, is_forced ? &step.forced_ids[layer] : nullptr);
    probs = std::move(routes.scores);
    weights = std::move(routes.weights);
    ids = std::move(routes.ids);
    recorded = std::move(routes.recorded);
  } else if (own.softmax_after_top_k) {
    probs = at::softmax(logits, -1);
    std::tie(weights, ids) = at::topk(logits, k, -1);
    if (is_forced) std::tie(weights, ids) = forced_among(logits, ids, step.forced_ids[layer]);
    weights = at::softmax(weights, -1);
  } else {
    probs = at::softmax(logits, -1);
    std::tie(weights, ids) = at::topk(probs, k, -1);
    if (is_forced) std::tie(weights, ids) = forced_among(probs, ids, step.forced_ids[layer]);
    if (own.normalizes) weights = weights.div(weights.sum(-1, true));
  }
  if (is_forced) {
    const at::Tensor& given = step.forced_weights[layer];
    weights = at::where(given.ge(0), given, weights);
  }
  step.routes_ids[layer] = ids;
  step.routes_weights[layer] = weights;
  if (step.audit != nullptr) {
    step.audit->expert_ids.push_back(ids);
    step.audit->expert_weights.push_back(weights);
    if (recorded.defined()) step.audit->router_scores.push_back(recorded);
    if (step.full_audit) step.audit->router_probs.push_back(probs);
  }
  step.observe(ids);
  step.observe(weights);
  if (recorded.defined()) step.observe(recorded);
  if (step.full_audit) step.observe(probs);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"router", reference_router}));

}  // namespace
}  // namespace vitrine::backend_torch
