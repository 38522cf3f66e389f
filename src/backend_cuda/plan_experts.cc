// The launches of a layer's router and its routed experts.
#include <algorithm>

#include "backend_cuda/fused_plan.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/router/router.h"
#include "ops/adapters.h"

namespace vitrine::backend_cuda {

using kernels::cuda::ActivationFormat;
using kernels::cuda::Epilogue;
using kernels::cuda::ProductTuning;
using kernels::cuda::Rows;
using ops::OpNode;

namespace {

constexpr int32_t kMostTileRows = 64;
constexpr int32_t kLeastTileRows = 8;

/// How both grouped products are cut: in tiles of as many rows as the routes of an expert fill.
ProductTuning tuning_of(const DeviceMatrix& matrix, int64_t routes, bool gated) {
  if (matrix.is_packed) {
    return kernels::cuda::choose_tuning(matrix.packed.layout, routes, matrix.experts, gated);
  }
  const int64_t each = (routes + matrix.experts - 1) / matrix.experts;
  int32_t rows = kLeastTileRows;
  while (rows < each && rows < kMostTileRows) rows *= 2;
  return {rows, false};
}

}  // namespace

void FusedPlan::plan_router(const OpNode& node) {
  RowsBuffer& in = value(node.inputs[0]);
  Routes& routes = routes_[node.layer];
  routes.top_k = static_cast<int32_t>(node.integer("top_k"));
  routes.experts = static_cast<int32_t>(node.integer("experts"));
  routes.ids = static_cast<int32_t*>(scratch("routes", max_tokens_ * routes.top_k * 4));
  routes.weights = static_cast<float*>(scratch("gate weights", max_tokens_ * routes.top_k * 4));
  RowsBuffer& logits = shared_rows("router logits", max_tokens_, routes.experts);
  Epilogue epilogue;
  epilogue.out = logits.data;
  epilogue.out_stride = logits.width;
  add_product(weights_.matrix(node.weight("weight"), routes.experts, in.width), in, epilogue);

  kernels::cuda::Router router;
  router.num_experts = routes.experts;
  router.top_k = routes.top_k;
  router.normalize = node.flag("normalize");
  router.softmax_after_topk = node.flag("softmax_after_top_k");
  router.logits = logits.data;
  router.ids = routes.ids;
  router.weights = routes.weights;
  router.record_stride = layout_.token_words;
  const AuditLayout::Layer* found = record_of(node.layer);
  const AuditLayout::Layer record = found != nullptr ? *found : AuditLayout::Layer{};
  add(
      [router, record](const StepMemory& memory, Stream stream) {
        kernels::cuda::Router own = router;
        auto* floats = reinterpret_cast<float*>(memory.token_records);
        if (record.expert_ids >= 0) {
          own.record_ids = memory.token_records + record.expert_ids;
          own.record_weights = floats + record.expert_weights;
        }
        if (record.router_probs >= 0) own.record_probs = floats + record.router_probs;
        return kernels::cuda::router_top_k(own, memory.shape.tokens, stream);
      },
      "softmax+top_k");
}

void FusedPlan::plan_experts(const OpNode& node) {
  RowsBuffer& in = value(node.inputs[0]);
  RowsBuffer& slots = value(node.outputs[0]);
  const Routes routes = routes_.at(node.layer);
  const int64_t intermediate = node.integer("intermediate");
  std::vector<std::string> gates, ups, downs;
  for (int64_t expert = 0; expert < routes.experts; ++expert) {
    gates.push_back(ops::expert_module(node, expert, "gate"));
    ups.push_back(ops::expert_module(node, expert, "up"));
    downs.push_back(ops::expert_module(node, expert, "down"));
  }
  const DeviceMatrix& gate = weights_.experts(gates, intermediate, in.width);
  const DeviceMatrix& up = weights_.experts(ups, intermediate, in.width);
  const DeviceMatrix& down = weights_.experts(downs, in.width, intermediate);
  const int64_t most_routes = max_tokens_ * routes.top_k;
  RowsBuffer& hidden = shared_rows("the experts' hidden layer", most_routes, intermediate);
  require_pair(gate, up);
  need(in, gate);
  need(hidden, down);

  kernels::cuda::Grouping grouping;
  grouping.num_experts = routes.experts;
  grouping.top_k = routes.top_k;
  grouping.ids = routes.ids;
  const int64_t active = std::min<int64_t>(routes.experts, most_routes);
  const int64_t tiles = most_routes / kLeastTileRows + active;
  const auto integers = [&](const char* name, int64_t count) {
    return static_cast<int32_t*>(scratch(name, count * 4));
  };
  grouping.counts = integers("experts' counts", routes.experts);
  grouping.offsets = integers("experts' offsets", routes.experts + 1);
  grouping.row_routes = integers("rows' routes", most_routes + active * kMostTileRows);
  grouping.slot_rows = integers("routes' rows", most_routes);
  grouping.tile_experts = integers("tiles' experts", tiles);
  grouping.num_tiles = integers("number of tiles", 1);
  const auto tile_rows = [&gate, top_k = routes.top_k](const StepMemory& memory) {
    return tuning_of(gate, int64_t{memory.shape.tokens} * top_k, true).tokens_per_tile;
  };
  add(
      [grouping, tile_rows](const StepMemory& memory, Stream stream) {
        kernels::cuda::Grouping own = grouping;
        own.tile_rows = tile_rows(memory);
        return kernels::cuda::group_by_expert(own, memory.shape.tokens, stream);
      },
      "group_by_expert");

  const auto rows_of = [grouping](const StepMemory& memory, int32_t routes_per_row) {
    Rows rows;
    rows.format = ActivationFormat::kInt8;
    rows.count = memory.shape.tokens * grouping.top_k;
    rows.tile_experts = grouping.tile_experts;
    rows.num_tiles = grouping.num_tiles;
    rows.row_routes = grouping.row_routes;
    rows.routes_per_row = routes_per_row;
    return rows;
  };
  add(
      [&gate, &up, &in, &hidden, rows_of, tile_rows](const StepMemory& memory, Stream stream) {
        Rows rows = rows_of(memory, 0);
        rows.routes_per_row = rows.count / memory.shape.tokens;
        Epilogue epilogue;
        epilogue.out = hidden.data;
        epilogue.out_stride = hidden.width;
        if (!gate.is_packed) {
          return kernels::cuda::gate_up_float(gate.floats, up.floats, gate.experts,
                                              {in.data, in.width, rows, tile_rows(memory)},
                                              epilogue, stream);
        }
        rows.activations = in.int8_rows.at(gate.group_size());
        return kernels::cuda::gate_up(gate.packed, up.packed, gate.experts, rows, epilogue,
                                      tuning_of(gate, rows.count, true), stream);
      },
      "grouped_gate_up_" + gate.kernel);
  add_forms(hidden, routes.top_k);
  add(
      [&down, &hidden, &slots, rows_of, tile_rows, width = in.width](const StepMemory& memory,
                                                                     Stream stream) {
        Rows rows = rows_of(memory, 1);
        Epilogue epilogue;
        epilogue.out = slots.data;
        epilogue.out_stride = width;
        if (!down.is_packed) {
          return kernels::cuda::linear_float(down.floats, down.experts,
                                             {hidden.data, hidden.width, rows, tile_rows(memory)},
                                             epilogue, stream);
        }
        ProductTuning tuning = tuning_of(down, rows.count, false);
        tuning.tokens_per_tile = tile_rows(memory);  // the same number by the same rule
        rows.activations = hidden.int8_rows.at(down.group_size());
        return kernels::cuda::linear(down.packed, down.experts, rows, epilogue, tuning, stream);
      },
      "grouped_" + down.kernel);
}

}  // namespace vitrine::backend_cuda
