#include "backend_cuda/cuda_op.h"

#include <map>
#include <string>

namespace vitrine::backend_cuda {

namespace {
std::map<std::string, CudaOp, std::less<>>& registry() {
  static std::map<std::string, CudaOp, std::less<>> ops;
  return ops;
}
}  // namespace

bool register_cuda_op(const CudaOp& op) {
  return registry().emplace(std::string(op.type), op).second;
}

const CudaOp& find_cuda_op(std::string_view type) {
  const auto found = registry().find(type);
  if (found == registry().end()) {
    throw Error(ErrorKind::kUnsupported, "op '" + std::string(type) +
                                             "' has no CUDA kernel in this version; use --kernels "
                                             "reference");
  }
  return found->second;
}

}  // namespace vitrine::backend_cuda
