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
  int64_t group_size = 0;     // columns of a scale, of activations too; 0: it is not quantized
};

/// Reads weights for a backend that links nothing of this room, hence an interface. Throws
/// vitrine::Error for a missing tensor or another shape.
class FloatWeights {
 public:
  virtual ~FloatWeights() = default;
  virtual FloatMatrix read_matrix(const std::string& module, int64_t rows, int64_t cols) const = 0;
  virtual std::vector<float> read_vector(const std::string& tensor, int64_t length) const = 0;
};

std::unique_ptr<FloatWeights> make_float_weights(const Checkpoint& checkpoint);

}  // namespace vitrine::model
