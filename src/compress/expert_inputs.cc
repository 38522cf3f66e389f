// SPDX-License-Identifier: Apache-2.0
#include "expert_inputs.h"

#include <algorithm>

#include "core/run_pieces.h"
#include "kernels/cpu/cpu_kernels.h"
#include "product_rows.h"

namespace vitrine::compress {
namespace {

constexpr int64_t kHiddenPiece = 64;  // rows of a matrix, a multiple of 16

}  // namespace

Rows expert_hidden_rows(const Rows& rows, int64_t count, std::span<const float> gate,
                        std::span<const float> up, int64_t width, int threads) {
  const kernels::CpuKernels& kernel = *kernels::cpu_kernel_tables().front();
  const std::vector<int32_t> chosen = spread_rows(rows.count(), count);
  count = std::ssize(chosen);
  const auto weight_of = [&](std::span<const float> values) {
    kernels::Weight weight;
    weight.format = kernels::WeightFormat::kF32;
    weight.rows = width;
    weight.cols = rows.width;
    weight.data = values.data();
    return weight;
  };
  kernels::Activations input;
  input.values = rows.values.data();
  input.value_stride = rows.width;
  kernels::RowMap map;
  map.in_rows = chosen.data();
  map.count = static_cast<int32_t>(count);
  Rows hidden;
  hidden.width = width;
  hidden.values.resize(static_cast<size_t>(count * width));
  const kernels::Weight gates = weight_of(gate), ups = weight_of(up);
  const auto make_columns = [&](size_t piece) {
    const int64_t begin = static_cast<int64_t>(piece) * kHiddenPiece;
    kernel.gate_up(gates, ups, begin, std::min(width, begin + kHiddenPiece), input, map,
                   hidden.values.data(), width);
  };
  core::run_pieces(threads, static_cast<size_t>((width + kHiddenPiece - 1) / kHiddenPiece),
                   [&] { return make_columns; });
  return hidden;
}

}  // namespace vitrine::compress
