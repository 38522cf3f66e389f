// SPDX-License-Identifier: Apache-2.0
// What dense blocks, shared experts and routed experts have in common: gate, up, activation, down.
#pragma once

#include <algorithm>
#include <string>

#include "ops/plan.h"

namespace vitrine::ops {

/// One SwiGLU block (Shazeer 2020): down(silu(gate x) * (up x)), or with another gating.
struct FeedForwardWeights {
  const kernels::Weight* gate = nullptr;
  const kernels::Weight* up = nullptr;
  const kernels::Weight* down = nullptr;
  const float* gate_bias = nullptr;  // null: none
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;

  uint64_t bytes() const { return weight_bytes(*gate) + weight_bytes(*up) + weight_bytes(*down); }
};

/// Throws kUnsupported where no kernel takes gate and up together: floats and integers, or groups
/// of two sizes.
inline void require_pair(const kernels::Weight& gate, const std::string& gate_name,
                         const kernels::Weight& up, const std::string& up_name) {
  const bool is_float = kernels::is_float_format(gate.format);
  if (is_float == kernels::is_float_format(up.format) &&
      (is_float || gate.group_size == up.group_size)) {
    return;
  }
  throw Error(ErrorKind::kUnsupported,
              "module '" + gate_name + "' is stored as " + weight_kernel_name(gate) + " and '" +
                  up_name + "' as " + weight_kernel_name(up) +
                  ", which no CPU kernel takes together; use --kernels reference, or quantize both "
                  "alike");
}

/// The columns' order of a down projection, where the rows of gate and up can stand in it, so that
/// it costs a step nothing: nobody but the two products sees the hidden layer. Else null.
inline const int32_t* foldable_order(PlanContext& context, const FormedMatrix& down,
                                     const std::string& gate, const std::string& up) {
  const bool is_seen = context.taps != nullptr || context.adapters != nullptr;
  if (down.form.order == nullptr || is_seen || !context.weights.orders_rows(gate) ||
      !context.weights.orders_rows(up)) {
    return nullptr;
  }
  return down.form.order;
}

/// Rows of the hidden layer in one piece: whole groups, so that each piece quantizes its own.
inline int64_t hidden_rows_per_piece(const RowBuffer& hidden, int threads) {
  return rows_per_piece(hidden.width, threads,
                        std::max<int64_t>(hidden.largest_group(), kernels::kTileRows));
}

/// Where gate and up stand by themselves before they become hidden rows.
struct GateAndUp {
  kernels::Gating gating;
  RowBuffer* gate = nullptr;  // as the hidden rows; null where the kernel makes these at once
  RowBuffer* up = nullptr;
};

/// Makes hidden elements [begin, end) of a row of gate and up.
inline void activate(const kernels::CpuKernels& kernel, const GateAndUp& parts,
                     const RowBuffer& hidden, int64_t row, int64_t begin, int64_t end) {
  kernel.apply_gating(parts.gating, parts.gate->row(row) + begin, parts.up->row(row) + begin,
                      end - begin, hidden.row(row) + begin);
}

/// Computes rows [begin, end) of the hidden layer for the mapped rows of what gate and up multiply,
/// and quantizes them.
inline void run_hidden(const kernels::CpuKernels& kernel, const Products& products,
                       const FeedForwardWeights& weights, const kernels::Activations& input,
                       const RowBuffer& hidden, const kernels::RowMap& rows, int64_t begin,
                       int64_t end, const GateAndUp& parts = {}) {
  if (parts.gate == nullptr) {
    products.gate_up(*weights.gate, *weights.up, begin, end, input, rows, hidden.data,
                     hidden.width);
    if (hidden.quantized.empty()) return;
  } else {
    products.linear(*weights.gate, begin, end, input, rows, weights.gate_bias, nullptr,
                    parts.gate->data, hidden.width);
    products.linear(*weights.up, begin, end, input, rows, weights.up_bias, nullptr, parts.up->data,
                    hidden.width);
  }
  for (int32_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.out_rows != nullptr ? rows.out_rows[i] : i;
    if (parts.gate != nullptr) activate(kernel, parts, hidden, row, begin, end);
    hidden.quantize(kernel, row, begin, end);
  }
}

/// silu(gate) * up of one row by the kernel that has it: a matrix of one column times 1 is that
/// column, exactly. So the bits are those of run_hidden where nothing was added to either.
inline void activate_row(const kernels::CpuKernels& kernel, const RowBuffer& gate,
                         const RowBuffer& up, const RowBuffer& hidden, int64_t row) {
  kernels::Weight gate_column, up_column;
  gate_column.rows = up_column.rows = hidden.width;
  gate_column.cols = up_column.cols = 1;
  gate_column.data = gate.row(row);
  up_column.data = up.row(row);
  static constexpr float kOne = 1.0F;
  kernels::Activations one;
  one.values = &kOne;
  one.value_stride = 1;
  kernels::RowMap rows;
  rows.count = 1;
  kernel.gate_up(gate_column, up_column, 0, hidden.width, one, rows, hidden.row(row), hidden.width);
  if (!hidden.quantized.empty()) hidden.quantize(kernel, row);
}

}  // namespace vitrine::ops
