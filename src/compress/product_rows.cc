// SPDX-License-Identifier: Apache-2.0
#include "product_rows.h"

#include <algorithm>

#include "core/run_pieces.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::compress {
namespace {

constexpr int64_t kProductPiece = 64;  // rows of a matrix, a multiple of 16

}  // namespace

std::vector<int32_t> spread_rows(int64_t total, int64_t count) {
  count = std::min(count, total);
  std::vector<int32_t> chosen(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    chosen[static_cast<size_t>(i)] = static_cast<int32_t>(i * total / count);
  }
  return chosen;
}

Rows product_rows(const Rows& rows, std::span<const int32_t> chosen, std::span<const float> weights,
                  int64_t width, int threads) {
  const kernels::CpuKernels& kernel = *kernels::cpu_kernel_tables().front();
  kernels::Weight weight;
  weight.format = kernels::WeightFormat::kF32;
  weight.rows = width;
  weight.cols = rows.width;
  weight.data = weights.data();
  kernels::Activations input;
  input.values = rows.values.data();
  input.value_stride = rows.width;
  kernels::RowMap map;
  map.in_rows = chosen.data();
  map.count = static_cast<int32_t>(chosen.size());
  Rows products;
  products.width = width;
  products.values.resize(chosen.size() * static_cast<size_t>(width));
  const auto make_columns = [&](size_t piece) {
    const int64_t begin = static_cast<int64_t>(piece) * kProductPiece;
    kernel.linear(weight, begin, std::min(width, begin + kProductPiece), input, map, nullptr,
                  nullptr, products.values.data(), width);
  };
  core::run_pieces(threads, static_cast<size_t>((width + kProductPiece - 1) / kProductPiece),
                   [&] { return make_columns; });
  return products;
}

}  // namespace vitrine::compress
