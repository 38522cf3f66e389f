// SPDX-License-Identifier: Apache-2.0
// The CUDA form of one op: how its launches are planned; found by the op's name in a registry.
#pragma once

#include <string>
#include <string_view>

#include "ops/graph.h"

namespace vitrine::backend_cuda {

class PlanBuilder;

/// To add an op, write one file with its `plan` and a VITRINE_REGISTER_CUDA_OP at its end.
struct CudaOp {
  std::string_view type;
  /// Adds the launches. Throws kUnsupported for what has no kernel.
  void (*plan)(PlanBuilder& builder, const ops::OpNode& node) = nullptr;
  /// It runs before what a combine left is added to the residual stream: it adds that itself, or
  /// does not read the stream.
  bool takes_addend = false;
  /// It says itself where its outputs lie.
  bool places_outputs = false;
  /// Its launches work on rows of logits alone, and are left out of steps without any.
  bool for_rows = false;
  /// It tells of the tokens that were chosen: where the host chooses, it waits for that.
  bool behind_choice = false;
};

/// Throws kUnsupported for what a layer has and these kernels lack.
[[noreturn]] void refuse_op(const ops::OpNode& node, const std::string& has);

/// Throws kUnsupported for an op that nobody registered, kInternal for one that two files did.
const CudaOp& find_cuda_op(std::string_view type);
/// Returns whether find_cuda_op() finds a form.
bool has_cuda_op(std::string_view type);
/// False where the name has one already; then none of the two is found.
bool register_cuda_op(const CudaOp& op);

#define VITRINE_REGISTER_CUDA_OP(op) \
  [[maybe_unused]] const bool cuda_op_is_registered = register_cuda_op(op)

}  // namespace vitrine::backend_cuda
