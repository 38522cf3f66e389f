// SPDX-License-Identifier: Apache-2.0
// Checks products of quantized matrices with rows of floats.
#pragma once

#include <utility>
#include <vector>

#include "kernel_test_util.h"
#include "kernels/cpu/widened_products.h"

namespace vitrine::kernels::testing {

/// Every table's products are those of the matrix that is written as floats first, one row alone,
/// few or many together, from any tile on; nothing beside them is written.
inline void expect_widened_products(Random& random, const Matrix& matrix) {
  const Weight& weight = matrix.weight;
  ASSERT_TRUE(has_widened_products(weight));
  std::vector<float> values(static_cast<size_t>(weight.rows * weight.cols));
  for (int64_t r = 0; r < weight.rows; ++r) {
    portable_kernels().embed_row(weight, r, 1.0f, &values[static_cast<size_t>(r * weight.cols)]);
  }
  const Weight floats{.rows = weight.rows, .cols = weight.cols, .data = values.data()};
  constexpr int32_t kCount = 14;
  const Inputs inputs(random, kCount, weight.cols, 0);
  const std::vector<int32_t> order = random.permutation(kCount);
  const int64_t stride = weight.rows + 1;
  std::vector<float> expected(static_cast<size_t>(kCount * stride), 7.0f);
  portable_kernels().linear(floats, 0, weight.rows, inputs.view,
                            {order.data(), order.data(), kCount}, nullptr, nullptr, expected.data(),
                            stride);
  const int64_t middle = weight.rows > kTileRows ? kTileRows : weight.rows;
  for (const CpuKernels* table : available_tables()) {
    for (const int32_t together : {1, 2, 5, kCount}) {
      std::vector<float> out(expected.size(), 7.0f);
      for (int32_t first = 0; first < kCount; first += together) {
        const int32_t count = std::min(together, kCount - first);
        const RowMap rows{order.data() + first, order.data() + first, count};
        for (const auto& [begin, end] : {std::pair{middle, weight.rows}, {int64_t{0}, middle}}) {
          widened_product (*table)(weight, begin, end, inputs.view, rows, out.data(), stride);
        }
      }
      ASSERT_TRUE(same_bits(out, expected)) << table->isa << ", " << together << " together";
    }
  }
}

}  // namespace vitrine::kernels::testing
