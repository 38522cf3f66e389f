// SPDX-License-Identifier: Apache-2.0
#include "hessian.h"

#include <algorithm>

#include "core/run_pieces.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::compress {
namespace {

constexpr int64_t kBlock = 256;  // rows that are added up before they are added to the sum
constexpr int64_t kPiece = 128;  // rows of the sum, a multiple of 16

/// Writes the transpose of at most kBlock rows: [width, kBlock].
void transpose(const Rows& rows, std::span<const int32_t> chosen, std::vector<float>& out) {
  std::ranges::fill(out, 0.0F);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const float* row = rows.row(chosen[i]);
    for (int64_t col = 0; col < rows.width; ++col) {
      out[static_cast<size_t>(col * kBlock) + i] = row[col];
    }
  }
}

}  // namespace

std::vector<float> hessian(const Rows& rows, std::span<const int32_t> chosen, int threads) {
  const kernels::CpuKernels& kernel = *kernels::cpu_kernel_tables().front();
  const int64_t width = rows.width;
  std::vector<float> sum(static_cast<size_t>(width * width), 0.0F);
  std::vector<float> columns(static_cast<size_t>(width * kBlock));
  kernels::Weight weight;
  weight.format = kernels::WeightFormat::kF32;
  weight.rows = width;
  weight.cols = kBlock;
  weight.data = columns.data();
  kernels::Activations input;
  input.values = columns.data();
  input.value_stride = kBlock;
  const float one = 1.0F;
  for (size_t first = 0; first < chosen.size(); first += kBlock) {
    transpose(rows, chosen.subspan(first, std::min<size_t>(kBlock, chosen.size() - first)),
              columns);
    // Rows [begin, end) of the sum up to their own columns; the rest is their mirror image.
    const auto add_rows = [&](size_t piece) {
      const int64_t begin = static_cast<int64_t>(piece) * kPiece;
      const int64_t end = std::min(width, begin + kPiece);
      kernels::Activations own = input;
      own.values += begin * kBlock;
      kernels::RowMap map;
      map.count = static_cast<int32_t>(end - begin);
      kernel.linear(weight, 0, end, own, map, nullptr, &one, sum.data() + begin * width, width);
    };
    core::run_pieces(threads, static_cast<size_t>((width + kPiece - 1) / kPiece),
                     [&] { return add_rows; });
  }
  for (int64_t row = 0; row < width; ++row) {
    for (int64_t col = row + 1; col < width; ++col) {
      sum[static_cast<size_t>(row * width + col)] = sum[static_cast<size_t>(col * width + row)];
    }
  }
  return sum;
}

}  // namespace vitrine::compress
