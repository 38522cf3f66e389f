// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint as float32 tensors on one device, for the reference path.
#pragma once

#include <map>
#include <string>

#include "ops/reference.h"
#include "vitrine/checkpoint.h"

namespace vitrine::model {

class TensorWeights : public ops::ReferenceWeights {
 public:
  TensorWeights(const Checkpoint& checkpoint, at::Device device)
      : checkpoint_(checkpoint), device_(device) {}

  const at::Tensor& matrix(const std::string& module, int64_t rows, int64_t cols) override;
  int64_t group_size(const std::string& module) override;
  const at::Tensor& vector(const std::string& tensor, int64_t length) override;

  uint64_t num_bytes() const { return num_bytes_; }
  int64_t num_parameters() const { return num_parameters_; }

 private:
  struct Entry {
    at::Tensor tensor;
    int64_t group_size = 0;
  };
  at::Tensor upload(std::vector<float> values, at::IntArrayRef shape);

  Checkpoint checkpoint_;
  at::Device device_;
  std::map<std::string, Entry> matrices_;
  std::map<std::string, at::Tensor> vectors_;
  uint64_t num_bytes_ = 0;
  int64_t num_parameters_ = 0;
};

}  // namespace vitrine::model
