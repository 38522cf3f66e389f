// SPDX-License-Identifier: Apache-2.0
#include "ops/low_rank.h"

#include <algorithm>

namespace vitrine::ops {

LowRankProducts::LowRankProducts(PlanContext& context, RowBuffer& in,
                                 std::span<const Product> products, double multiplier)
    : kernel_(context.kernel), in_(in) {
  if (context.adapters == nullptr) return;
  const AdapterWeights& adapters = *context.adapters;
  for (size_t i = 0; i < products.size(); ++i) {
    Part part;
    part.out = products[i].out;
    int64_t rank = 0;
    for (int32_t adapter = 0; adapter < adapters.size(); ++adapter) {
      const LowRankMatrix* matrix = adapters.find(adapter, products[i].module);
      part.matrices.push_back(matrix);
      part.scales.push_back(matrix == nullptr ? 0.0F
                                              : matrix->scale * static_cast<float>(multiplier));
      if (matrix == nullptr) continue;
      rank = std::max(rank, matrix->a.rows);
      weight_bytes_ += ops::weight_bytes(matrix->a) + ops::weight_bytes(matrix->b);
    }
    if (rank == 0) continue;
    part.hidden = &context.scratch.shared_rows("adapter_" + std::to_string(i),
                                               context.shape.max_tokens, rank);
    const std::array<int64_t, kHalves> rows = {rank, part.out->width};
    const std::array<int64_t, kHalves> cols = {in.width, rank};
    for (size_t half = 0; half < kHalves; ++half) {
      const int64_t least = divide_up(kMinPieceNumbers, cols[half] * kernels::kTileRows);
      part.piece_rows[half] =
          std::max<int64_t>(least * kernels::kTileRows,
                            rows_per_piece(rows[half], context.shape.threads, kernels::kTileRows));
      part.first_piece[half] = pieces_[half];
      pieces_[half] += divide_up(rows[half], part.piece_rows[half]);
    }
    parts_.push_back(std::move(part));
  }
}

// 0: a x. 1: scale * b of that, added. Pieces: adapter by adapter, part by part.
Phase LowRankProducts::first_half(Phase own) const {
  return {own.name,
          [this, pieces = own.pieces](const StepState& step) {
            return pieces(step) + this->pieces(step, 0);
          },
          [this, own](const StepState& step, int64_t piece) {
            const int64_t first = own.pieces(step);
            if (piece < first) return own.run(step, piece);
            run(step, 0, piece - first);
          },
          own.prepare};
}

Phase LowRankProducts::second_half() const {
  return {"adapters", [this](const StepState& step) { return pieces(step, 1); },
          [this](const StepState& step, int64_t piece) { run(step, 1, piece); }};
}

void LowRankProducts::run(const StepState& step, int half, int64_t piece) const {
  const auto p = static_cast<size_t>(half);
  const AdapterRows& of = step.adapters[piece / pieces_[p]];
  piece %= pieces_[p];
  size_t at = parts_.size() - 1;
  while (parts_[at].first_piece[p] > piece) --at;
  const Part& part = parts_[at];
  const LowRankMatrix* matrix = part.matrices[static_cast<size_t>(of.adapter)];
  if (matrix == nullptr) return;
  const kernels::Weight& weight = half == 0 ? matrix->a : matrix->b;
  const int64_t begin = (piece - part.first_piece[p]) * part.piece_rows[p];
  const int64_t end = std::min(weight.rows, begin + part.piece_rows[p]);
  if (begin >= end) return;  // of a lower rank than another adapter
  const kernels::RowMap rows{of.rows, of.rows, of.count};
  const RowBuffer& from = half == 0 ? in_ : *part.hidden;
  RowBuffer& to = half == 0 ? *part.hidden : *part.out;
  kernel_.linear(weight, begin, end, activations(from, weight), rows, nullptr,
                 half == 0 ? nullptr : &part.scales[static_cast<size_t>(of.adapter)], to.data,
                 to.width);
}

}  // namespace vitrine::ops
