// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/torch_op.h"

#include "core/registry.h"

namespace vitrine::backend_torch {

namespace {
core::Registry<std::string, TorchOp>& torch_ops() {
  static core::Registry<std::string, TorchOp> ops("reference op");
  return ops;
}
}  // namespace

bool register_torch_op(const TorchOp& op) { return torch_ops().add(std::string(op.type), op); }

const TorchOp& find_torch_op(std::string_view type) {
  if (const TorchOp* found = torch_ops().find(type)) return *found;
  throw Error(ErrorKind::kUnsupported, "op '" + std::string(type) +
                                           "' has no reference in this version; use --kernels "
                                           "fused");
}

}  // namespace vitrine::backend_torch
