// SPDX-License-Identifier: Apache-2.0
// What adapters add to an op's products (kernels/cuda/adapter), in steps that use one of them.
#pragma once

#include <string>
#include <vector>

#include "backend_cuda/plan_builder.h"

namespace vitrine::backend_cuda {

/// A product that adapters may change: one matrix, or one an expert.
struct AdaptedProduct {
  std::vector<std::string> modules;  // by expert
  float* out = nullptr;              // [tokens or routes, out_stride]
  int64_t out_stride = 0;
  int64_t rows = 0;  // of the matrix
};

/// What the products of one op read.
struct AdaptedInput {
  const RowsBuffer* rows = nullptr;
  const Routes* routes = nullptr;  // of routed experts: outputs are routes' rows
  bool rows_are_routes = false;    // and so is what they read
};

/// True where an adapter changes one of the modules.
bool is_adapted(PlanBuilder& builder, const std::vector<AdaptedProduct>& products);

/// Adds the launches that add to the products' outputs, at most three, in shapes with adapters;
/// none where none is adapted.
void add_low_rank(PlanBuilder& builder, const AdaptedInput& in,
                  const std::vector<AdaptedProduct>& products, double multiplier = 1.0);

}  // namespace vitrine::backend_cuda
