// SPDX-License-Identifier: Apache-2.0
// Vectors of a checkpoint by the names that graphs have for them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// Returns the name of a norm whose weight is 1 + what the checkpoint holds of it (qwen3_next).
std::string one_plus(const std::string& tensor);

/// Returns the name of decays whose logarithms, without their signs, the checkpoint holds.
std::string minus_exp(const std::string& tensor);

/// Returns the tensor behind such a name, or the name itself.
std::string stored_name(const std::string& name);

/// A vector of a checkpoint: [length], a matrix of one such row, or [channels, 1, taps] of a
/// convolution of each channel by itself, row after row.
struct NamedVector {
  const TensorInfo* info = nullptr;
  bool adds_one = false, is_minus_exp = false;
};

/// Finds a vector by its name, or by what one_plus() or minus_exp() makes of it. Throws kBadFile
/// for a missing tensor or another shape, kUnsupported for one that holds no floats.
NamedVector find_named_vector(const Checkpoint& checkpoint, const std::string& name,
                              int64_t length);

/// Reads its numbers as float32; 1 + x and -exp(x) are rounded once.
std::vector<float> read_named_vector(const Checkpoint& checkpoint, const NamedVector& vector);

}  // namespace vitrine::model
