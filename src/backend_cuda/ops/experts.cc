// SPDX-License-Identifier: Apache-2.0
// experts: tokens grouped by expert, and the grouped products of the routed experts.
#include <algorithm>

#include "backend_cuda/cuda_op.h"
#include "backend_cuda/low_rank.h"
#include "backend_cuda/plan_builder.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/router/router.h"
#include "ops/adapters.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using kernels::cuda::ProductTuning;
using kernels::cuda::Rows;
using ops::OpNode;

constexpr int32_t kMaxTileRows = 32;

/// How both grouped products are cut: in tiles of as many rows as the routes of an expert fill, of
/// one token in the smallest ones.
ProductTuning tuning_of(const DeviceMatrix& matrix, int32_t tokens, int32_t top_k) {
  const int64_t routes = int64_t{tokens} * top_k;
  if (matrix.is_packed) {
    ProductTuning tuning =
        kernels::cuda::choose_tuning(matrix.packed.layout, routes, matrix.experts);
    tuning.tokens = std::min(tokens, kMaxTileRows);  // a token has an expert once
    return tuning;
  }
  const int64_t each = (routes + matrix.experts - 1) / matrix.experts;
  int32_t rows = kernels::cuda::kLeastTileRows;
  while (rows < each && rows < kMaxTileRows) rows *= 2;
  return {.tokens_per_tile = rows};
}

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::ExpertsParameters>();
  if (parameters.has_biases || parameters.gating.kind != kernels::Gating::Kind::kSilu) {
    refuse_op(node, "has experts with biases or a clamped gating");
  }
  RowsBuffer& in = builder.value(node.inputs[0]);
  RowsBuffer& slots = builder.value(node.outputs[0]);
  const Routes routes = builder.routes(node.layer);
  const int64_t intermediate = parameters.intermediate;
  std::vector<std::string> gates, ups, downs;
  for (int64_t expert = 0; expert < routes.experts; ++expert) {
    gates.push_back(parameters.module(expert, parameters.gate));
    ups.push_back(parameters.module(expert, parameters.up));
    downs.push_back(parameters.module(expert, parameters.down));
  }
  const DeviceMatrix& gate = builder.weights().experts(gates, intermediate, in.width);
  const DeviceMatrix& up = builder.weights().experts(ups, intermediate, in.width);
  const DeviceMatrix& down = builder.weights().experts(downs, in.width, intermediate);
  const int64_t most_routes = builder.max_tokens() * routes.top_k;
  RowsBuffer& hidden = builder.shared_rows("the experts' hidden layer", most_routes, intermediate);
  hidden.is_for_products = true;
  builder.require_pair(gate, up);
  builder.need(in, gate);
  builder.need(hidden, down);

  const kernels::cuda::Grouping grouping = routes.grouping;
  const auto tile_rows = [&gate, top_k = routes.top_k](const StepMemory& memory) {
    return tuning_of(gate, memory.shape.tokens, top_k).tokens_per_tile;
  };
  builder.add(
      [grouping, tile_rows](const StepMemory& memory, Stream stream) {
        if (memory.shape.tokens == 1) return Status{};  // the router has done it
        kernels::cuda::Grouping own = grouping;
        own.tile_rows = tile_rows(memory);
        return kernels::cuda::group_by_expert(own, memory.shape.tokens, stream);
      },
      "group_by_expert");

  // Of a matrix that reads rows of tokens, or of routes.
  const auto rows_of = [grouping](const StepMemory& memory, const DeviceMatrix& matrix,
                                  const RowsBuffer& from, bool from_tokens) {
    Rows rows = rows_for(matrix, from, memory.shape.tokens * grouping.top_k);
    rows.tile_experts = grouping.tile_experts;
    rows.num_tiles = grouping.num_tiles;
    rows.row_routes = grouping.row_routes;
    rows.routes_per_row = from_tokens ? grouping.top_k : 1;
    return rows;
  };
  // A product of one kind of matrix, whose rows are the routes'.
  const auto add_grouped = [&](const DeviceMatrix& matrix, RowsBuffer& from, float* to,
                               int64_t to_stride, bool from_tokens) {
    builder.add(
        [&matrix, &from, to, to_stride, from_tokens, rows_of, tile_rows](const StepMemory& memory,
                                                                         Stream stream) {
          const Rows rows = rows_of(memory, matrix, from, from_tokens);
          Epilogue epilogue;
          epilogue.out = to;
          epilogue.out_stride = to_stride;
          if (!matrix.is_packed) {
            return kernels::cuda::linear_float(matrix.floats, matrix.experts,
                                               {from.data, from.width, rows, tile_rows(memory)},
                                               epilogue, stream);
          }
          ProductTuning tuning =
              tuning_of(matrix, memory.shape.tokens, rows.count / memory.shape.tokens);
          tuning.tokens_per_tile = tile_rows(memory);  // as the routes are grouped
          return kernels::cuda::linear(matrix.packed, matrix.experts, rows, epilogue, tuning,
                                       stream);
        },
        "grouped_" + matrix.kernel);
  };
  const bool splits = is_adapted(builder, {{gates}, {ups}});
  if (splits) builder.set_condition(has_no_adapters);
  builder.add(
      [&gate, &up, &in, &hidden, rows_of, tile_rows](const StepMemory& memory, Stream stream) {
        const Rows rows = rows_of(memory, gate, in, true);
        const Epilogue epilogue = hidden.target();
        if (!gate.is_packed) {
          return kernels::cuda::gate_up_float(gate.floats, up.floats, gate.experts,
                                              {in.data, in.width, rows, tile_rows(memory)},
                                              epilogue, stream);
        }
        return kernels::cuda::gate_up(
            gate.packed, up.packed, gate.experts, rows, epilogue,
            tuning_of(gate, memory.shape.tokens, rows.count / memory.shape.tokens), stream);
      },
      "grouped_gate_up_" + gate.kernel);
  builder.set_condition(nullptr);
  const Routes& of_layer = builder.routes(node.layer);
  if (splits) {
    RowsBuffer& gate_rows = builder.shared_rows("the experts' gates", most_routes, intermediate);
    RowsBuffer& up_rows = builder.shared_rows("the experts' ups", most_routes, intermediate);
    builder.set_condition(has_adapters);
    add_grouped(gate, in, gate_rows.data, intermediate, true);
    add_grouped(up, in, up_rows.data, intermediate, true);
    add_low_rank(builder, {&in, &of_layer},
                 {{gates, gate_rows.data, intermediate, intermediate},
                  {ups, up_rows.data, intermediate, intermediate}});
    add_activation(builder, gate_rows, up_rows, hidden, routes.top_k);
  }
  builder.add_forms(hidden, routes.top_k);
  add_grouped(down, hidden, slots.data, in.width, false);
  add_low_rank(builder, {&hidden, &of_layer, true}, {{downs, slots.data, in.width, in.width}});
  builder.set_weight_bytes(builder.node_weight_bytes() / static_cast<uint64_t>(routes.experts) *
                           static_cast<uint64_t>(routes.top_k));
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "experts", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
