// SPDX-License-Identifier: Apache-2.0
// Private to the room: GPTQ (Frantar et al. 2022, arXiv 2210.17323).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/quant.h"

namespace vitrine::compress {

/// How GPTQ goes about a matrix.
struct GptqOptions {
  double damping = 0.01;      ///< of the mean of the Hessian's diagonal, added to it
  int block = 128;            ///< columns whose errors go to the others at once
  bool sorts_columns = true;  ///< the largest of the diagonal first; else as they stand
  /// Scales are chosen from the group's extremes times 1, 0.99, … down to this, by the error of
  /// its weights; 1: the extremes' own.
  double least_shrink = 0.8;
  double norm = 2.4;  ///< that error is the sum of |error|^norm
};

/// What a Hessian says of the columns of every matrix that its rows are multiplied with.
class GptqFactor {
 public:
  /// `hessian`: [size, size], symmetric. Throws kInvalidArgument where no damping up to 1 makes it
  /// positive definite.
  GptqFactor(std::span<const float> hessian, int64_t size, const GptqOptions& options);

  int64_t size() const { return size_; }
  /// Returns the columns in the order in which they are quantized.
  std::span<const int32_t> order() const { return order_; }
  /// Returns row i of U, upper triangular, with the inverse UᵀU; both in that order.
  const float* row(int64_t i) const { return upper_.data() + i * size_; }
  /// Whether no row had anything in this column.
  bool is_dead(int32_t column) const { return dead_[static_cast<size_t>(column)]; }
  /// Returns the damping that was taken: twice, four times … what was asked for where it had to be.
  double damping() const { return damping_; }

 private:
  int64_t size_;
  std::vector<int32_t> order_;
  std::vector<bool> dead_;
  std::vector<float> upper_;
  double damping_;
};

/// A matrix that was quantized, and what it cost by the Hessian.
struct GptqResult {
  QuantizedMatrix matrix;
  double loss = 0;  ///< sum of (error / U_ii)², which is tr(E H Eᵀ) where nothing is clamped
};

/// Quantizes [rows, cols] by the factor of its inputs. `dtype` is that of the scales. The result
/// hangs on no number of threads.
GptqResult gptq(std::span<const float> weights, int64_t rows, int64_t cols, DType dtype,
                const QuantScheme& scheme, const GptqFactor& factor, const GptqOptions& options,
                int threads);

}  // namespace vitrine::compress
