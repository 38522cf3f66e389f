// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint as float32 tensors on one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/float_weights.h"

namespace vitrine::backend_torch {

/// Each is read and uploaded when it is first asked for. Throws vitrine::Error for a missing tensor
/// or another shape.
class TensorWeights {
 public:
  TensorWeights(std::unique_ptr<model::FloatWeights> weights, at::Device device)
      : weights_(std::move(weights)), device_(device) {}

  /// [rows, cols]
  const at::Tensor& matrix(const std::string& module, int64_t rows, int64_t cols);
  /// Group size with which the matrix is quantized (activations are then quantized too); 0: float.
  int64_t group_size(const std::string& module) const;
  const at::Tensor& vector(const std::string& tensor, int64_t length);

  uint64_t num_bytes() const { return num_bytes_; }
  int64_t num_parameters() const { return num_parameters_; }

 private:
  struct Entry {
    at::Tensor tensor;
    int64_t group_size = 0;
  };
  at::Tensor upload(std::vector<float> values, at::IntArrayRef shape);

  std::unique_ptr<model::FloatWeights> weights_;
  at::Device device_;
  std::map<std::string, Entry> matrices_;
  std::map<std::string, at::Tensor> vectors_;
  uint64_t num_bytes_ = 0;
  int64_t num_parameters_ = 0;
};

}  // namespace vitrine::backend_torch
