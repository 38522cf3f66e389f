// SPDX-License-Identifier: Apache-2.0
// Private to the room: how far the scales of activations reach that a folder holds.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "layer_method.h"

namespace vitrine::compress {

/// Integers of 8 bits, as a scale of the folder is written for and as kernels round.
inline constexpr float kStepsOfRange = 127.5f, kLargestStep = 127.0f;

/// Returns the magnitude that is to become the largest of these integers where they stand for
/// `values`, and what lies beyond is cut off: the one with the least squared error of 0.03 to 1
/// times the largest magnitude.
float best_range(std::span<const float> values);

/// The magnitudes that the folder's scales of a layer's inputs are to reach, of the rows of each
/// site as folded norms make them. That is the largest one for floats, and best_range for integers.
/// An expert's down has one of its own where enough tokens reach it. Each is found once.
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
