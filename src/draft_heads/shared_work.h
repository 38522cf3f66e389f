// SPDX-License-Identifier: Apache-2.0
// Work of heads in pieces, on the threads that an engine lends between its steps.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/piece_work.h"
#include "ops/plan.h"

namespace vitrine::draft_heads {

/// Which thread takes a piece changes no result: each computes whole outputs.
class SharedWork {
 public:
  explicit SharedWork(const kernels::CpuKernels& kernel) : kernel_(kernel) {}

  /// Null: the calling thread works alone.
  void lend(core::PieceThreads* threads) { threads_ = threads; }

  /// Calls run_one(piece) for all pieces. `operations`: multiplications, or what takes as long, of
  /// all of them; few are not worth sharing.
  template <typename Run>
  void run(int64_t pieces, int64_t operations, const Run& run_one) const {
    if (threads_ == nullptr || pieces <= 1 || operations < kFewOperations) {
      for (int64_t piece = 0; piece < pieces; ++piece) run_one(piece);
      return;
    }
    Pieces<Run> work(run_one);
    threads_->run(work, pieces);
  }

  /// Calls run_part(begin, end) for the rows of a matrix, or matrices, of so many in parts that
  /// begin at multiples of `multiple`.
  template <typename Run>
  void run_rows(int64_t rows, int64_t multiple, int64_t operations, const Run& run_part) const {
    const int threads = threads_ == nullptr ? 1 : threads_->threads();
    const bool is_alone = threads == 1 || operations < kFewOperations;
    const int64_t part = is_alone ? rows : ops::rows_per_piece(rows, threads, multiple);
    run(ops::divide_up(rows, part), operations,
        [&](int64_t piece) { run_part(piece * part, std::min(rows, (piece + 1) * part)); });
  }

  /// One product, of packed weights. Output rows are `out`'s own.
  struct Product {
    const kernels::Weight* weight = nullptr;
    const ops::RowBuffer* in = nullptr;
    kernels::RowMap rows;
    const float* bias = nullptr;
    float* out = nullptr;  // [rows, weight rows]
    bool adds = false;     // to what stands there
  };
  /// Those that need nothing of each other.
  void multiply(std::span<const Product> products) const {
    int64_t rows = 0, operations = 0;
    for (const Product& product : products) {
      const int64_t padded = ops::divide_up(product.weight->rows, kernels::kTileRows);
      rows += padded * kernels::kTileRows;
      operations += product.weight->rows * product.weight->cols * product.rows.count;
    }
    run_rows(rows, kernels::kTileRows, operations, [&](int64_t begin, int64_t end) {
      for (const Product& product : products) {
        const int64_t own = product.weight->rows;
        if (begin < own && end > 0) {
          multiply_rows(product, std::max<int64_t>(begin, 0), std::min(end, own));
        }
        const int64_t padded = ops::divide_up(own, kernels::kTileRows) * kernels::kTileRows;
        begin -= padded;
        end -= padded;
      }
    });
  }
  void multiply(const Product& product) const { multiply({&product, 1}); }

 private:
  // What one thread does in less time than others take to hear of it.
  static constexpr int64_t kFewOperations = 1 << 14;

  template <typename Run>
  class Pieces final : public core::PieceWork {
   public:
    explicit Pieces(const Run& run_one) : run_one_(run_one) {}
    void run_piece(int64_t piece) override { run_one_(piece); }

   private:
    const Run& run_one_;
  };

  void multiply_rows(const Product& product, int64_t begin, int64_t end) const {
    static constexpr float kOne = 1.0F;
    const kernels::Weight& weight = *product.weight;
    kernel_.linear(weight, begin, end, ops::activations(*product.in, weight), product.rows,
                   product.bias, product.adds ? &kOne : nullptr, product.out, weight.rows);
  }

  const kernels::CpuKernels& kernel_;
  core::PieceThreads* threads_ = nullptr;
};

}  // namespace vitrine::draft_heads
