// SPDX-License-Identifier: Apache-2.0
// Products of integers with rows of floats; those of blocks are block_formats_test.cc's.
#include "widened_products.h"

namespace vitrine::kernels::testing {
namespace {

/// Float rows times integers of every kind of scale, group, zero point and minimum.
TEST(WidenedProducts, OfIntegersAreThoseOfTheirFloats) {
  Random random(14);
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kInt3}) {
    for (const auto& [scales, minimums] : {std::pair{ScaleFormat::kF32, OffsetFormat::kF32},
                                           {ScaleFormat::kF16, OffsetFormat::kF16},
                                           {ScaleFormat::kBF16, OffsetFormat::kBF16}}) {
      for (const OffsetFormat offsets : {OffsetFormat::kNone, OffsetFormat::kZeroPoint, minimums}) {
        for (const auto& [rows, cols] :
             {std::pair<int64_t, int64_t>{37, 32}, {16, 192}, {5, 512}}) {
          const int32_t group_size = 32 << random.integer(0, 2);
          SCOPED_TRACE(std::to_string(cols) + " columns in groups of " +
                       std::to_string(group_size));
          expect_widened_products(
              random, quantized_matrix(random, format, scales, group_size, rows, cols, offsets));
        }
      }
    }
  }
  const Matrix odd = quantized_matrix(random, WeightFormat::kInt4, ScaleFormat::kF16, 32, 4, 33);
  EXPECT_FALSE(has_widened_products(odd.weight));
  const Matrix floats = float_matrix(random, WeightFormat::kF32, 4, 32);
  EXPECT_FALSE(has_widened_products(floats.weight));
}

}  // namespace
}  // namespace vitrine::kernels::testing
