// SPDX-License-Identifier: Apache-2.0
// Products with matrices that stand packed in memory, or as their file has them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::ops {

class PlanMemory;

/// The kernels that read matrices, for a whole plan. A packed matrix goes straight to them. Of one
/// that stands in a mapped file, a strip of rows is packed into scratch that stays in the cache,
/// multiplied with all input rows, and forgotten: the same kernels read the same numbers, so the
/// bits are the same, and nothing but the file's own pages takes up memory. (Rows of 8-bit floats
/// need no packing; they are looked through for NaN.)
///
/// Any thread may call the products of a step.
class Products {
 public:
  explicit Products(const kernels::CpuKernels& kernel) : kernel_(kernel) {}

  /// Rows of a strip.
  static constexpr int64_t kStripRows = 32;

  /// After planning, before the first product: scratch for so many threads, each for two strips (a
  /// pair of matrices) of the largest of `matrices`. None where none stands in a file.
  void allocate(PlanMemory& memory, int threads, size_t strip_bytes);
  /// Bytes of a strip of this matrix; 0 where it is packed.
  static size_t strip_bytes(const kernels::Weight& weight);

  // As in kernels::CpuKernels.
  void linear(const kernels::Weight& weight, int64_t row_begin, int64_t row_end,
              const kernels::Activations& input, const kernels::RowMap& rows, const float* bias,
              const float* residual_scale, float* out, int64_t out_stride) const;
  void gate_up(const kernels::Weight& gate, const kernels::Weight& up, int64_t row_begin,
               int64_t row_end, const kernels::Activations& input, const kernels::RowMap& rows,
               float* out, int64_t out_stride) const;
  void embed_row(const kernels::Weight& table, int64_t row, float multiplier, float* out) const;

  /// A matrix in a file in which a product met a scale that is not finite, or a byte that is a NaN,
  /// and forgets it; null: none.
  const kernels::Weight* take_bad_matrix() { return bad_matrix_.exchange(nullptr); }

 private:
  struct alignas(64) Scratch {
    mutable std::atomic<bool> is_taken{false};
    std::byte* memory = nullptr;
  };
  class Borrowed;
  kernels::Weight pack(const kernels::Weight& weight, int64_t row_begin, int64_t row_end,
                       std::byte* memory) const;

  const kernels::CpuKernels& kernel_;
  std::vector<Scratch> scratch_;
  size_t strip_bytes_ = 0;
  mutable std::atomic<const kernels::Weight*> bad_matrix_{nullptr};
};

}  // namespace vitrine::ops
