// SPDX-License-Identifier: Apache-2.0
// Private to the room: the sums of x xᵀ over the rows that a matrix is multiplied with.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vitrine::compress {

/// Rows of one width, which a model's ops made of a calibration text.
struct Rows {
  int64_t width = 0;
  std::vector<float> values;  // [count(), width]

  int64_t count() const { return width == 0 ? 0 : static_cast<int64_t>(values.size()) / width; }
  const float* row(int64_t i) const { return values.data() + i * width; }
};

/// Returns [width, width], symmetric: the sum of x xᵀ over the chosen rows, in float32 by
/// blocks of rows, whose order is that of the choice. The bits depend neither on threads nor on the
/// instruction set (docs/numerics.md: these are products of the engine's kernels).
std::vector<float> hessian(const Rows& rows, std::span<const int32_t> chosen, int threads);

}  // namespace vitrine::compress
