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

struct ExpertModules {
  std::vector<std::string> gate, up, down;  // by expert
};

/// The launches over a layer's routes, grouped by expert; copied into them.
class GroupedRoutes {
 public:
  GroupedRoutes(const Routes& routes, const DeviceMatrix& gate)
      : grouping_(routes.grouping), gate_(gate) {}

  Status group(const StepMemory& memory, Stream stream) const {
    if (memory.shape.tokens == 1) return {};  // the router has done it
    kernels::cuda::Grouping own = grouping_;
    own.tile_rows = tile_rows(memory);
    return kernels::cuda::group_by_expert(own, memory.shape.tokens, stream);
  }

  /// A product whose rows are the routes'; it reads rows of tokens, or of routes.
  Status multiply(const StepMemory& memory, const DeviceMatrix& matrix, const RowsBuffer& from,
                  bool from_tokens, const Epilogue& epilogue, Stream stream) const {
    const Rows rows = rows_of(memory, matrix, from, from_tokens);
    if (!matrix.is_packed) {
      return kernels::cuda::linear_float(matrix.floats, matrix.experts,
                                         {from.data, from.width, rows, tile_rows(memory)}, epilogue,
                                         stream);
    }
    ProductTuning tuning = tuning_of(matrix, memory.shape.tokens, grouping_.top_k);
    tuning.tokens_per_tile = tile_rows(memory);  // as the routes are grouped
    return kernels::cuda::linear(matrix.packed, matrix.experts, rows, epilogue, tuning, stream);
  }

  /// Hidden rows at once.
  Status gate_up(const StepMemory& memory, const DeviceMatrix& up, const RowsBuffer& in,
                 const RowsBuffer& hidden, Stream stream) const {
    const Rows rows = rows_of(memory, gate_, in, true);
    const Epilogue epilogue = hidden.target();
    if (!gate_.is_packed) {
      return kernels::cuda::gate_up_float(gate_.floats, up.floats, gate_.experts,
                                          {in.data, in.width, rows, tile_rows(memory)}, epilogue,
                                          stream);
    }
    return kernels::cuda::gate_up(gate_.packed, up.packed, gate_.experts, rows, epilogue,
                                  tuning_of(gate_, memory.shape.tokens, grouping_.top_k), stream);
  }

 private:
  int32_t tile_rows(const StepMemory& memory) const {
    return tuning_of(gate_, memory.shape.tokens, grouping_.top_k).tokens_per_tile;
  }
  Rows rows_of(const StepMemory& memory, const DeviceMatrix& matrix, const RowsBuffer& from,
               bool from_tokens) const {
    Rows rows = rows_for(matrix, from, memory.shape.tokens * grouping_.top_k);
    rows.tile_experts = grouping_.tile_experts;
    rows.num_tiles = grouping_.num_tiles;
    rows.row_routes = grouping_.row_routes;
    rows.routes_per_row = from_tokens ? grouping_.top_k : 1;
    return rows;
  }

  kernels::cuda::Grouping grouping_;
  const DeviceMatrix& gate_;
};

/// The biases of all experts, one behind another.
const float* biases_of(PlanBuilder& builder, const std::vector<std::string>& modules,
                       int64_t rows) {
  std::vector<std::pair<std::string, int64_t>> tensors;
  for (const std::string& module : modules) tensors.emplace_back(module + ".bias", rows);
  return builder.weights().vector(tensors);
}

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::ExpertsParameters>();
  RowsBuffer& in = builder.value(node.inputs[0]);
  RowsBuffer& slots = builder.value(node.outputs[0]);
  const Routes& routes = builder.routes(node.layer);
  const int64_t intermediate = parameters.intermediate;
  ExpertModules modules;
  for (int64_t expert = 0; expert < routes.experts; ++expert) {
    modules.gate.push_back(parameters.module(expert, parameters.gate));
    modules.up.push_back(parameters.module(expert, parameters.up));
    modules.down.push_back(parameters.module(expert, parameters.down));
  }
  const DeviceMatrix& gate = builder.weights().experts(modules.gate, intermediate, in.width);
  const DeviceMatrix& up = builder.weights().experts(modules.up, intermediate, in.width);
  const DeviceMatrix& down = builder.weights().experts(modules.down, in.width, intermediate);
  const int64_t most_routes = builder.max_tokens() * routes.top_k;
  RowsBuffer& hidden = builder.shared_rows("the experts' hidden layer", most_routes, intermediate);
  hidden.is_for_products = true;
  const bool is_fused =
      parameters.gating.kind == kernels::Gating::Kind::kSilu && !parameters.has_biases;
  if (is_fused) builder.require_pair(gate, up);
  builder.need(in, gate);
  builder.need(in, up);
  builder.need(hidden, down);

  const GroupedRoutes grouped(routes, gate);
  builder.add(
      [grouped](const StepMemory& memory, Stream stream) { return grouped.group(memory, stream); },
      "group_by_expert");
  const auto add_grouped = [&](const DeviceMatrix& matrix, const std::vector<std::string>& names,
                               const RowsBuffer& from, float* to, bool from_tokens) {
    Epilogue epilogue;
    epilogue.out = to;
    epilogue.out_stride = epilogue.expert_bias = matrix.rows();
    if (parameters.has_biases) epilogue.bias = biases_of(builder, names, matrix.rows());
    builder.add(
        [grouped, &matrix, &from, from_tokens, epilogue](const StepMemory& memory, Stream stream) {
          return grouped.multiply(memory, matrix, from, from_tokens, epilogue, stream);
        },
        "grouped_" + matrix.kernel);
  };
  const bool adapts = is_adapted(builder, {{modules.gate}, {modules.up}});
  if (is_fused) {
    if (adapts) builder.set_condition(has_no_adapters);
    builder.add(
        [grouped, &up, &in, &hidden](const StepMemory& memory, Stream stream) {
          return grouped.gate_up(memory, up, in, hidden, stream);
        },
        "grouped_gate_up_" + gate.kernel);
    builder.set_condition(nullptr);
  }
  if (!is_fused || adapts) {
    // Gate and up stand by themselves: always, or where an adapter adds to them.
    const Condition condition = is_fused ? has_adapters : nullptr;
    RowsBuffer& gate_rows = builder.shared_rows("the experts' gates", most_routes, intermediate);
    RowsBuffer& up_rows = builder.shared_rows("the experts' ups", most_routes, intermediate);
    builder.set_condition(condition);
    add_grouped(gate, modules.gate, in, gate_rows.data, true);
    add_grouped(up, modules.up, in, up_rows.data, true);
    add_low_rank(builder, {&in, &routes},
                 {{modules.gate, gate_rows.data, intermediate, intermediate},
                  {modules.up, up_rows.data, intermediate, intermediate}});
    builder.set_condition(condition);
    builder.add_gating(parameters.gating, gate_rows, up_rows, hidden, routes.top_k);
    builder.set_condition(nullptr);
  }
  builder.add_forms(hidden, routes.top_k);
  add_grouped(down, modules.down, hidden, slots.data, false);
  add_low_rank(builder, {&hidden, &routes, true}, {{modules.down, slots.data, in.width, in.width}});
  builder.set_weight_bytes(builder.node_weight_bytes() / static_cast<uint64_t>(routes.experts) *
                           static_cast<uint64_t>(routes.top_k));
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "experts", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
