// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/tensor_weights.h"

#include <ATen/ATen.h>

namespace vitrine::backend_torch {

at::Tensor TensorWeights::upload(std::vector<float> values, at::IntArrayRef shape) {
  num_bytes_ += values.size() * sizeof(float);
  num_parameters_ += static_cast<int64_t>(values.size());
  at::Tensor host =
      at::from_blob(values.data(), shape, at::TensorOptions().dtype(at::kFloat)).clone();
  return host.to(device_);
}

const at::Tensor& TensorWeights::matrix(const std::string& module, int64_t rows, int64_t cols) {
  auto found = matrices_.find(module);
  if (found != matrices_.end()) return found->second.tensor;
  model::FloatMatrix read = weights_->read_matrix(module, rows, cols);
  Entry entry{upload(std::move(read.values), {rows, cols}), read.group_size};
  return matrices_.emplace(module, std::move(entry)).first->second.tensor;
}

int64_t TensorWeights::group_size(const std::string& module) const {
  auto found = matrices_.find(module);
  return found == matrices_.end() ? 0 : found->second.group_size;
}

const at::Tensor& TensorWeights::vector(const std::string& tensor, int64_t length) {
  auto found = vectors_.find(tensor);
  if (found != vectors_.end()) return found->second;
  return vectors_.emplace(tensor, upload(weights_->read_vector(tensor, length), {length}))
      .first->second;
}

}  // namespace vitrine::backend_torch
