#include "backend_cuda/cuda_op.h"

#include <map>
#include <string>

namespace vitrine::backend_cuda {

namespace {

struct Registration {
  CudaOp op;
  bool is_twice = false;
};

std::map<std::string, Registration, std::less<>>& registry() {
  static std::map<std::string, Registration, std::less<>> ops;
  return ops;
}

}  // namespace

bool register_cuda_op(const CudaOp& op) {
  const auto [found, is_first] = registry().emplace(std::string(op.type), Registration{op});
  // Static initialisers call this, where an exception would end the process: find_cuda_op throws.
  if (!is_first) found->second.is_twice = true;
  return is_first;
}

const CudaOp& find_cuda_op(std::string_view type) {
  const auto found = registry().find(type);
  if (found == registry().end()) {
    throw Error(ErrorKind::kUnsupported, "op '" + std::string(type) +
                                             "' has no CUDA kernel in this version; use --kernels "
                                             "reference");
  }
  if (found->second.is_twice) {
    throw Error(ErrorKind::kInternal, "op '" + std::string(type) +
                                          "' has two CUDA forms; expected one registration for "
                                          "each op");
  }
  return found->second.op;
}

}  // namespace vitrine::backend_cuda
