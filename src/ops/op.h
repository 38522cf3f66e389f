// SPDX-License-Identifier: Apache-2.0
// One op on the CPU's fused path: its checks, its choice of kernel; found by name in a registry.
// What it means is its reference (src/backend_torch/ops).
#pragma once

#include <memory>
#include <string_view>

#include "core/unique_name.h"
#include "ops/graph.h"
#include "ops/plan.h"

namespace vitrine::ops {

/// To add an op, write one file with its `plan` and a VITRINE_REGISTER_OP at its end.
struct OpDefinition {
  std::string_view type;
  /// Makes the CPU's fused form; never null. Throws kBadFile for weights of other shapes,
  /// kUnsupported where there is no kernel.
  std::unique_ptr<PlannedOp> (*plan)(PlanContext& context, const OpNode& node) = nullptr;
};

/// Throws kInternal for a type that nobody registered.
const OpDefinition& find_op(std::string_view type);
bool register_op(const OpDefinition& definition);

#define VITRINE_REGISTER_OP(definition) \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(op_is_registered_) = register_op(definition)

}  // namespace vitrine::ops
