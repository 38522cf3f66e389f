// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/tensor_adapters.h"

#include <ATen/ATen.h>

namespace vitrine::backend_torch {

const TensorLowRank* TensorAdapters::find(int32_t adapter, const std::string& module) {
  const auto key = std::pair(adapter, module);
  if (const auto found = tensors_.find(key); found != tensors_.end()) return &found->second;
  const ops::LowRankMatrix* matrix = adapters_.find(adapter, module);
  if (matrix == nullptr) return nullptr;
  const auto upload = [&](const kernels::Weight& weight) {
    const at::ScalarType type = weight.format == kernels::WeightFormat::kF32   ? at::kFloat
                                : weight.format == kernels::WeightFormat::kF16 ? at::kHalf
                                                                               : at::kBFloat16;
    // The tensor is cloned at once, so nothing is written through the pointer.
    return at::from_blob(const_cast<void*>(weight.data), {weight.rows, weight.cols},
                         at::TensorOptions().dtype(type))
        .to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)
        .to(device_);
  };
  return &tensors_.emplace(key, TensorLowRank{upload(matrix->a), upload(matrix->b), matrix->scale})
              .first->second;
}

}  // namespace vitrine::backend_torch
