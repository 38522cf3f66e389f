// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/low_rank.h"

#include <algorithm>

#include "kernels/cuda/adapter/low_rank.h"
#include "ops/adapters.h"

namespace vitrine::backend_cuda {

using kernels::cuda::LowRankMatrix;

namespace {

/// The adapters' matrices of one product, uploaded; null where there are none.
const LowRankMatrix* place_matrices(PlanBuilder& builder, const AdaptedProduct& product,
                                    double multiplier, int64_t* max_rank) {
  const ops::AdapterWeights& adapters = *builder.adapters();
  std::vector<LowRankMatrix> table;
  std::vector<const kernels::Weight*> weights;
  for (const std::string& module : product.modules) {
    for (int32_t adapter = 0; adapter < adapters.size(); ++adapter) {
      LowRankMatrix& matrix = table.emplace_back();
      const ops::LowRankMatrix* found = adapters.find(adapter, module);
      if (found == nullptr) continue;
      matrix.rank = static_cast<int32_t>(found->a.rows);
      matrix.scale = found->scale * static_cast<float>(multiplier);
      weights.push_back(&found->a);
      weights.push_back(&found->b);
      *max_rank = std::max(*max_rank, found->a.rows);
      if (found->a.rows > kernels::cuda::kMaxLowRank) {
        throw Error(ErrorKind::kUnsupported,
                    "an adapter of rank " + std::to_string(found->a.rows) + " for " + module +
                        "; CUDA's kernels take at most " +
                        std::to_string(kernels::cuda::kMaxLowRank) + ", use --kernels reference");
      }
    }
  }
  if (weights.empty()) return nullptr;
  const std::vector<const float*> placed = builder.weights().widened(weights, "an adapter");
  auto next = placed.begin();
  for (LowRankMatrix& matrix : table) {
    if (matrix.rank == 0) continue;
    matrix.a = *next++;
    matrix.b = *next++;
  }
  return builder.weights().array(table, "an adapter's table");
}

}  // namespace

bool is_adapted(PlanBuilder& builder, const std::vector<AdaptedProduct>& products) {
  const ops::AdapterWeights* adapters = builder.adapters();
  if (adapters == nullptr) return false;
  for (const AdaptedProduct& product : products) {
    for (const std::string& module : product.modules) {
      for (int32_t adapter = 0; adapter < adapters->size(); ++adapter) {
        if (adapters->find(adapter, module) != nullptr) return true;
      }
    }
  }
  return false;
}

void add_low_rank(PlanBuilder& builder, const AdaptedInput& in,
                  const std::vector<AdaptedProduct>& products, double multiplier) {
  if (!is_adapted(builder, products)) return;
  kernels::cuda::LowRank low_rank;
  low_rank.adapters = builder.adapters()->size();
  low_rank.x = in.rows->data;
  low_rank.x_stride = in.rows->stride;
  low_rank.cols = in.rows->width;
  low_rank.x_of_items = in.rows_are_routes;
  if (in.routes != nullptr) {
    low_rank.per_token = in.routes->top_k;
    low_rank.experts = in.routes->ids;
  }
  int64_t rank = 0;
  for (const AdaptedProduct& product : products) {
    const LowRankMatrix* matrices = place_matrices(builder, product, multiplier, &rank);
    if (matrices == nullptr) continue;
    kernels::cuda::LowRankPart& part = low_rank.parts[low_rank.num_parts++];
    part.matrices = matrices;
    part.out = product.out;
    part.out_stride = product.out_stride;
    part.rows = product.rows;
  }
  if (low_rank.num_parts == 0) return;  // weights are not read
  low_rank.max_rank = static_cast<int32_t>(rank);
  for (int32_t i = 0; i < low_rank.num_parts; ++i) {
    low_rank.parts[i].low =
        static_cast<float*>(builder.scratch("adapters' inner rows " + std::to_string(i),
                                            builder.max_tokens() * low_rank.per_token * rank * 4));
  }
  builder.set_condition(has_adapters);
  builder.add(
      [low_rank](const StepMemory& memory, Stream stream) {
        kernels::cuda::LowRank own = low_rank;
        own.adapter_of = memory.adapters;
        return kernels::cuda::add_low_rank(own, memory.shape.tokens, stream);
      },
      "low_rank");
  builder.set_condition(nullptr);
}

}  // namespace vitrine::backend_cuda
