// SPDX-License-Identifier: Apache-2.0
// The reference of one op: plain ATen calls on any device; found by the op's name in a registry.
#pragma once

#include <string_view>

#include "backend_torch/reference.h"
#include "core/unique_name.h"

namespace vitrine::backend_torch {

/// To add an op, write one file with its `run` and a VITRINE_REGISTER_TORCH_OP at its end.
struct TorchOp {
  std::string_view type;
  void (*run)(ReferenceStep& step, const ops::OpNode& node) = nullptr;
};

/// Throws kUnsupported for an op that nobody registered, kInternal for one that two files did.
const TorchOp& find_torch_op(std::string_view type);
/// False where the name has one already; then none of the two is found.
bool register_torch_op(const TorchOp& op);

#define VITRINE_REGISTER_TORCH_OP(op) \
  [[maybe_unused]] const bool VITRINE_UNIQUE_NAME(torch_op_is_registered_) = register_torch_op(op)

}  // namespace vitrine::backend_torch
