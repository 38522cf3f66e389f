// SPDX-License-Identifier: Apache-2.0
// router: the choice of experts.
#include "kernels/cuda/router/router.h"

#include <algorithm>

#include "backend_cuda/cuda_op.h"
#include "backend_cuda/low_rank.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using ops::OpNode;

constexpr int32_t kMaxTileRows = 32;

kernels::cuda::Grouping plan_grouping(PlanBuilder& builder, const Routes& routes) {
  const int64_t most_routes = builder.max_tokens() * routes.top_k;
  const int64_t active = std::min<int64_t>(routes.experts, most_routes);
  const int64_t tiles = most_routes / kernels::cuda::kLeastTileRows + active;
  const auto integers = [&](const char* name, int64_t count) {
    return static_cast<int32_t*>(builder.scratch(name, count * 4));
  };
  kernels::cuda::Grouping grouping;
  grouping.num_experts = routes.experts;
  grouping.top_k = routes.top_k;
  grouping.tile_rows = kernels::cuda::kLeastTileRows;
  grouping.ids = routes.ids;
  grouping.counts = integers("experts' counts", routes.experts);
  grouping.offsets = integers("experts' offsets", routes.experts + 1);
  grouping.row_routes = integers("rows' routes", most_routes + active * kMaxTileRows);
  grouping.slot_rows = integers("routes' rows", most_routes);
  grouping.tile_experts = integers("tiles' experts", tiles);
  grouping.num_tiles = integers("number of tiles", 1);
  return grouping;
}

/// How a router by scores chooses; none where it goes by probabilities.
std::optional<kernels::cuda::RouterScores> scores_of(PlanBuilder& builder, const OpNode& node,
                                                     const ops::RouterParameters& parameters) {
  if (!parameters.is_scored()) return std::nullopt;
  if (parameters.score != ops::RouterParameters::Score::kSigmoid ||
      !parameters.group_score_adds_two || parameters.least_sum > 0 ||
      !parameters.expert_scale.empty()) {
    refuse_op(node, "has a router with corrected probabilities, or scores of another family");
  }
  kernels::cuda::RouterScores scores;
  if (!parameters.correction.empty()) {
    scores.correction =
        builder.weights().vector({{parameters.correction, parameters.shape.experts}});
  }
  scores.groups = static_cast<int32_t>(parameters.groups);
  scores.chosen_groups = static_cast<int32_t>(parameters.chosen_groups);
  scores.sum_epsilon = static_cast<float>(parameters.sum_epsilon);
  scores.scale = static_cast<float>(parameters.scale);
  return scores;
}

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::RouterParameters>();
  RowsBuffer& in = builder.value(node.inputs[0]);
  const std::optional<kernels::cuda::RouterScores> scores = scores_of(builder, node, parameters);
  Routes& routes = builder.routes(node.layer);
  routes.top_k = static_cast<int32_t>(parameters.shape.top_k);
  routes.experts = static_cast<int32_t>(parameters.shape.experts);
  routes.ids =
      static_cast<int32_t*>(builder.scratch("routes", builder.max_tokens() * routes.top_k * 4));
  routes.weights =
      static_cast<float*>(builder.scratch("gate weights", builder.max_tokens() * routes.top_k * 4));
  RowsBuffer& logits = builder.shared_rows("router logits", builder.max_tokens(), routes.experts);
  Epilogue epilogue;
  epilogue.out = logits.data;
  epilogue.out_stride = logits.width;
  const std::string& module = parameters.matrix;
  const std::string& bias = parameters.bias;
  if (!bias.empty()) epilogue.bias = builder.weights().vector({{bias, routes.experts}});
  // A rounded input would choose other experts than the CPU, for a matrix that is small.
  builder.add_product(builder.weights().matrix(module, routes.experts, in.width, Precision::kAsCpu),
                      in, epilogue);
  add_low_rank(builder, {&in}, {{{module}, logits.data, logits.width, logits.width}});

  kernels::cuda::Router router;
  router.num_experts = routes.experts;
  router.top_k = routes.top_k;
  router.normalize = parameters.normalizes;
  router.softmax_after_topk = parameters.softmax_after_top_k;
  router.logits = logits.data;
  router.ids = routes.ids;
  router.weights = routes.weights;
  router.grouping = routes.grouping = plan_grouping(builder, routes);
  router.record_stride = builder.layout().token_words;
  const AuditLayout::Layer* found = builder.record_of(node.layer);
  const AuditLayout::Layer record = found != nullptr ? *found : AuditLayout::Layer{};
  const int64_t forced = forced_route_words(builder.layout(), node.layer);
  const int64_t forced_stride = forced_route_words(builder.layout(), builder.graph().num_layers);
  builder.add(
      [router, scores, record, forced, forced_stride](const StepMemory& memory, Stream stream) {
        kernels::cuda::Router own = router;
        auto* floats = reinterpret_cast<float*>(memory.token_records);
        if (record.expert_ids >= 0) {
          own.record_ids = memory.token_records + record.expert_ids;
          own.record_weights = floats + record.expert_weights;
        }
        if (record.router_scores >= 0) own.record_scores = floats + record.router_scores;
        if (record.router_probs >= 0) own.record_probs = floats + record.router_probs;
        if (memory.shape.forces) {
          own.forced_ids = memory.forced_routes + forced;
          own.forced_weights = reinterpret_cast<const float*>(own.forced_ids + own.top_k);
          own.forced_stride = forced_stride;
        }
        if (scores) {
          return kernels::cuda::scored_router_top_k(own, *scores, memory.shape.tokens, stream);
        }
        return kernels::cuda::router_top_k(own, memory.shape.tokens, stream);
      },
      scores ? "scores+top_k" : "softmax+top_k");
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "router", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
