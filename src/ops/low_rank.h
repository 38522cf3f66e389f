// SPDX-License-Identifier: Apache-2.0
// Low-rank products for an op's plan: y += scale * b (a x), for each adapter on its own tokens.
#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "ops/plan.h"

namespace vitrine::ops {

/// What adapters add to the outputs of one op, in two halves, which have no work in a step that
/// uses none of them: the first may run beside the op's own products, since it reads what they
/// read; the second adds to what they made. By the kernels of every float matrix, so the same
/// promise of bits holds.
class LowRankProducts {
 public:
  /// A product of the op: what it writes and the matrix's name.
  struct Product {
    RowBuffer* out = nullptr;
    std::string module;
  };
  /// `in`: what all of the products read.
  LowRankProducts(PlanContext& context, RowBuffer& in, std::span<const Product> products,
                  double multiplier);

  /// True where no adapter changes one of the matrices.
  bool empty() const { return parts_.empty(); }
  /// The op's own phase with the first half's pieces behind its own.
  Phase first_half(Phase own) const;
  Phase second_half() const;
  uint64_t weight_bytes() const { return weight_bytes_; }

 private:
  int64_t pieces(const StepState& step, int half) const {
    return step.num_adapters * pieces_[static_cast<size_t>(half)];
  }
  void run(const StepState& step, int half, int64_t piece) const;
  /// Numbers of a matrix that are worth a piece: 16 KB in 16 bits.
  static constexpr int64_t kMinPieceNumbers = 8192;
  static constexpr int kHalves = 2;
  struct Part {
    RowBuffer* out = nullptr;
    RowBuffer* hidden = nullptr;                 // [tokens, largest rank]
    std::vector<const LowRankMatrix*> matrices;  // by adapter
    std::vector<float> scales;                   // by adapter
    std::array<int64_t, kHalves> piece_rows{}, first_piece{};
  };
  const kernels::CpuKernels& kernel_;
  RowBuffer& in_;
  std::vector<Part> parts_;
  std::array<int64_t, kHalves> pieces_{};
  uint64_t weight_bytes_ = 0;
};

}  // namespace vitrine::ops
