// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/cuda_op.h"

#include "core/registry.h"

namespace vitrine::backend_cuda {

namespace {
core::Registry<std::string, CudaOp>& registry() {
  static core::Registry<std::string, CudaOp> ops("CUDA op");
  return ops;
}
}  // namespace

bool register_cuda_op(const CudaOp& op) { return registry().add(std::string(op.type), op); }

void refuse_op(const ops::OpNode& node, const std::string& has) {
  throw Error(ErrorKind::kUnsupported, "layer " + std::to_string(node.layer) + " " + has +
                                           ", which CUDA's fused kernels lack in this version; "
                                           "use --kernels reference");
}

bool has_cuda_op(std::string_view type) { return registry().find(type) != nullptr; }

const CudaOp& find_cuda_op(std::string_view type) {
  if (const CudaOp* found = registry().find(type)) return *found;
  throw Error(ErrorKind::kUnsupported, "op '" + std::string(type) +
                                           "' has no CUDA kernel in this version; use --kernels "
                                           "reference");
}

}  // namespace vitrine::backend_cuda
