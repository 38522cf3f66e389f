// SPDX-License-Identifier: Apache-2.0
// Private to the room: how far the scales of activations reach that a folder holds.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "layer_method.h"

namespace vitrine::compress {

/// Kernels round activations to integers of at most this size.
inline constexpr float kLargestStep = 127.0f;

/// Returns the magnitude that a scale for all of `values` reaches: of floats the largest one; of
/// integers the one with the least squared error of 0.03 to 1 times the largest, what lies beyond
/// being cut off.
float input_range(std::span<const float> values, NumberFormat format);

/// Finds the input_range of the rows of each site as folded norms make them, each once. An expert's
/// down has one of its own where enough tokens reach it.
class InputRanges {
 public:
  explicit InputRanges(const LayerWork& work) : work_(work) {}
  /// Returns 0 for a scheme without such a scale, and where no row is.
  float of(const PlannedTensor& planned, const SiteMatrix& matrix);

 private:
  float find(const PlannedTensor& planned, const SiteMatrix& matrix, int64_t expert) const;

  const LayerWork& work_;
  std::map<std::pair<size_t, int64_t>, float> ranges_;  // all that reads a site has the same fold
};

}  // namespace vitrine::compress
