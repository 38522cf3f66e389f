// SPDX-License-Identifier: Apache-2.0
#include "gptq.h"

#include <Eigen/Cholesky>
#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/run_pieces.h"
#include "quant/group_grid.h"

namespace vitrine::compress {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int64_t kPieceRows = 32;  // of a matrix, which one thread takes
constexpr int kShrinkSteps = 100;   // of the grid of scales

/// H in the order of quantizing, backwards: its lower factor is then an upper one of H.
Matrix reversed(std::span<const float> hessian, std::span<const int32_t> order,
                const std::vector<bool>& dead) {
  const auto size = static_cast<Eigen::Index>(order.size());
  Matrix out(size, size);
  for (Eigen::Index i = 0; i < size; ++i) {
    const auto row = static_cast<size_t>(order[static_cast<size_t>(size - 1 - i)]);
    for (Eigen::Index j = 0; j < size; ++j) {
      const auto col = static_cast<size_t>(order[static_cast<size_t>(size - 1 - j)]);
      out(i, j) = hessian[row * order.size() + col];
    }
    if (dead[row]) out(i, i) = 1;
  }
  return out;
}

/// The grid of each group of a row, from the weights as they were.
class RowGrids {
 public:
  RowGrids(const QuantScheme& scheme, DType dtype, const GptqOptions& options)
      : scheme_(scheme), dtype_(dtype), options_(options), range_(scheme.bits) {}

  const quant::IntegerRange& range() const { return range_; }

  quant::GroupGrid find(std::span<const float> weights) const {
    float smallest = 0, largest = 0;
    for (const float weight : weights) {
      smallest = std::min(smallest, weight);
      largest = std::max(largest, weight);
    }
    const auto grid_of = [&](float shrink) {
      return quant::group_grid(smallest * shrink, largest * shrink, scheme_.bits, scheme_.symmetric,
                               dtype_);
    };
    quant::GroupGrid best = grid_of(1);
    double least = error(weights, best);
    const int steps = static_cast<int>(std::lround((1 - options_.least_shrink) * kShrinkSteps));
    for (int step = 1; step < steps; ++step) {
      const auto grid = grid_of(1 - static_cast<float>(step) / kShrinkSteps);
      const double found = error(weights, grid);
      if (found >= least) continue;
      least = found;
      best = grid;
    }
    return best;
  }

 private:
  double error(std::span<const float> weights, const quant::GroupGrid& grid) const {
    const auto norm = static_cast<float>(options_.norm);
    double sum = 0;
    for (const float weight : weights) {
      const float off = std::fabs(grid.value(grid.round(weight, range_)) - weight);
      sum += std::pow(off, norm);
    }
    return sum;
  }

  QuantScheme scheme_;
  DType dtype_;
  const GptqOptions& options_;
  quant::IntegerRange range_;
};

}  // namespace

GptqFactor::GptqFactor(std::span<const float> hessian, int64_t size, const GptqOptions& options)
    : size_(size),
      order_(static_cast<size_t>(size)),
      dead_(static_cast<size_t>(size)),
      upper_(static_cast<size_t>(size * size)),
      damping_(options.damping) {
  const auto diagonal = [&](int32_t i) { return hessian[static_cast<size_t>(i * size + i)]; };
  std::iota(order_.begin(), order_.end(), 0);
  double trace = 0;
  for (const int32_t i : order_) {
    dead_[static_cast<size_t>(i)] = diagonal(i) == 0;
    trace += dead_[static_cast<size_t>(i)] ? 1 : diagonal(i);
  }
  if (options.sorts_columns) {
    std::ranges::stable_sort(order_,
                             [&](int32_t a, int32_t b) { return diagonal(a) > diagonal(b); });
  }
  const double mean = trace / static_cast<double>(std::max<int64_t>(1, size));
  const Matrix plain = reversed(hessian, order_, dead_);
  for (;; damping_ *= 2) {
    Matrix damped = plain;
    damped.diagonal().array() += damping_ * mean;
    const Eigen::LLT<Matrix> factor(damped);
    const Matrix lower = factor.matrixL();
    if (factor.info() == Eigen::Success && lower.allFinite()) {
      // H = R Rᵀ with R upper, so that the inverse is (R⁻¹)ᵀ R⁻¹, and R⁻¹ is upper.
      Matrix inverse = Matrix::Identity(size, size);
      factor.matrixL().solveInPlace(inverse);
      for (int64_t i = 0; i < size; ++i) {
        for (int64_t j = i; j < size; ++j) {
          upper_[static_cast<size_t>(i * size + j)] =
              static_cast<float>(inverse(size - 1 - i, size - 1 - j));
        }
      }
      return;
    }
    if (damping_ >= 1 || !std::isfinite(mean)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "the products of a matrix's inputs are not positive definite, whatever is added "
                  "to their diagonal; expected finite inputs");
    }
  }
}

GptqResult gptq(std::span<const float> weights, int64_t rows, int64_t cols, DType dtype,
                const QuantScheme& scheme, const GptqFactor& factor, const GptqOptions& options,
                int threads) {
  GptqResult result;
  QuantizedMatrix& matrix = result.matrix;
  matrix.bits = scheme.bits;
  matrix.group_size = scheme.group_size;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.scale_dtype = dtype;
  const int64_t groups = matrix.groups();
  matrix.values.resize(weights.size());
  matrix.scales.resize(static_cast<size_t>(rows * groups));
  if (!scheme.symmetric) matrix.zero_points.resize(matrix.scales.size());
  const RowGrids grids(scheme, dtype, options);
  const quant::IntegerRange range = grids.range();
  std::vector<double> losses(static_cast<size_t>(rows), 0.0);

  std::vector<quant::GroupGrid> all_grids(matrix.scales.size());
  const auto quantize_rows = [&](int64_t first_row, int64_t last_row) {
    const int64_t count = last_row - first_row;
    std::vector<float> left(static_cast<size_t>(count * cols));  // in the order of the columns
    std::vector<float> errors(static_cast<size_t>(count * options.block));
    for (int64_t r = 0; r < count; ++r) {
      const float* source = weights.data() + (first_row + r) * cols;
      for (int64_t i = 0; i < cols; ++i) {
        const int32_t col = factor.order()[static_cast<size_t>(i)];
        left[static_cast<size_t>(r * cols + i)] = factor.is_dead(col) ? 0.0F : source[col];
      }
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t first = g * scheme.group_size;
        const int64_t size = std::min<int64_t>(scheme.group_size, cols - first);
        const auto at = static_cast<size_t>((first_row + r) * groups + g);
        const quant::GroupGrid grid = grids.find({source + first, static_cast<size_t>(size)});
        all_grids[at] = grid;
        matrix.scales[at] = grid.scale;
        if (!scheme.symmetric) matrix.zero_points[at] = static_cast<int8_t>(grid.zero_point);
      }
    }
    for (int64_t begin = 0; begin < cols; begin += options.block) {
      const int64_t end = std::min<int64_t>(cols, begin + options.block);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t row = first_row + r;
        float* own = left.data() + r * cols;
        for (int64_t i = begin; i < end; ++i) {
          const int32_t col = factor.order()[static_cast<size_t>(i)];
          const float* upper = factor.row(i);
          const auto& grid = all_grids[static_cast<size_t>(row * groups + col / scheme.group_size)];
          const float number = grid.round(own[i], range);
          matrix.values[static_cast<size_t>(row * cols + col)] = static_cast<int8_t>(number);
          const float error = (own[i] - grid.value(number)) / upper[i];
          errors[static_cast<size_t>(r * options.block + i - begin)] = error;
          losses[static_cast<size_t>(row)] += static_cast<double>(error) * error;
          for (int64_t j = i + 1; j < end; ++j) own[j] -= error * upper[j];
        }
      }
      for (int64_t i = begin; i < end; ++i) {
        const float* upper = factor.row(i);
        for (int64_t r = 0; r < count; ++r) {
          const float error = errors[static_cast<size_t>(r * options.block + i - begin)];
          float* own = left.data() + r * cols;
          for (int64_t j = end; j < cols; ++j) own[j] -= error * upper[j];
        }
      }
    }
  };
  core::run_pieces(threads, static_cast<size_t>((rows + kPieceRows - 1) / kPieceRows), [&] {
    return [&](size_t piece) {
      const int64_t begin = static_cast<int64_t>(piece) * kPieceRows;
      quantize_rows(begin, std::min(rows, begin + kPieceRows));
    };
  });
  result.loss = std::accumulate(losses.begin(), losses.end(), 0.0);
  return result;
}

}  // namespace vitrine::compress
