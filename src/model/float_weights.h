// SPDX-License-Identifier: Apache-2.0
// Weights of a checkpoint as float32 on the host, for the reference path.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::model {

struct FloatMatrix {
  std::vector<float> values;  // [rows, cols]
  int64_t group_size = 0;     // with which it is quantized, as its activations then are; 0: float
};

/// Throws vitrine::Error for a missing tensor or another shape. An interface, for a backend that
/// links nothing of this room.
class FloatWeights {
 public:
  virtual ~FloatWeights() = default;
  virtual FloatMatrix read_matrix(const std::string& module, int64_t rows, int64_t cols) const = 0;
  virtual std::vector<float> read_vector(const std::string& tensor, int64_t length) const = 0;
};

std::unique_ptr<FloatWeights> make_float_weights(const Checkpoint& checkpoint);

}  // namespace vitrine::model
