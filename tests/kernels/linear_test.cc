// SPDX-License-Identifier: Apache-2.0
// Matrix products: against double precision, the same bits in every table and beside any rows.
#include <array>

#include "kernel_test_util.h"

namespace vitrine::kernels::testing {
namespace {

struct Shape {
  WeightFormat format;
  ScaleFormat scale_format;
  int32_t group_size;  // 0: float
  int64_t rows;
  int64_t cols;
  OffsetFormat offset_format = OffsetFormat::kNone;
};

/// Columns in groups that do and do not divide them.
constexpr int64_t kQuantizedCols[] = {1, 31, 32, 33, 70, 128, 195, 256, 384};

/// An offset format that holds what the scale format holds.
OffsetFormat minimum_format(ScaleFormat format) {
  return format == ScaleFormat::kF16    ? OffsetFormat::kF16
         : format == ScaleFormat::kBF16 ? OffsetFormat::kBF16
                                        : OffsetFormat::kF32;
}

std::vector<Shape> all_shapes() {
  std::vector<Shape> shapes;
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    for (const int64_t rows : {1, 5, 16, 19, 35}) {
      for (const int64_t cols : {1, 2, 15, 16, 17, 47, 64, 259}) {
        shapes.push_back({format, ScaleFormat::kF32, 0, rows, cols});
      }
    }
  }
  for (const int64_t cols : {1, 15, 17, 127, 128, 129, 256, 259, 400}) {
    for (const int64_t rows : {1, 5, 19}) {
      shapes.push_back({WeightFormat::kE4M3, ScaleFormat::kF32, 0, rows, cols});
    }
  }
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kInt3}) {
    for (const ScaleFormat scales : {ScaleFormat::kF32, ScaleFormat::kF16, ScaleFormat::kBF16}) {
      for (const int32_t group_size : {32, 64, 128}) {
        for (const OffsetFormat offsets :
             {OffsetFormat::kNone, OffsetFormat::kZeroPoint, minimum_format(scales)}) {
          for (const int64_t cols : kQuantizedCols) {
            const int64_t rows = std::array{1, 16, 37}[shapes.size() % 3];
            shapes.push_back({format, scales, group_size, rows, cols, offsets});
          }
        }
      }
    }
  }
  return shapes;
}

Matrix make_matrix(Random& random, const Shape& shape) {
  if (shape.group_size == 0) return float_matrix(random, shape.format, shape.rows, shape.cols);
  return quantized_matrix(random, shape.format, shape.scale_format, shape.group_size, shape.rows,
                          shape.cols, shape.offset_format);
}

struct Dot {
  double value = 0;
  double bound = 0;  // of the rounding error, from the norms of both vectors
};

Dot reference_dot(const Matrix& matrix, int64_t row, const Inputs& inputs, int64_t in_row) {
  Dot dot;
  double weight_square = 0;
  double input_square = 0;
  for (int64_t i = 0; i < matrix.weight.cols; ++i) {
    double w = matrix.at(row, i);
    const double x = inputs.at(in_row, i, matrix.input_group());
    dot.value += w * x;
    if (matrix.has_minimum()) {  // its product is added on its own
      const int64_t groups = group_count(matrix.weight.cols, matrix.weight.group_size);
      w = std::fabs(w) + 2 * std::fabs(matrix.offsets[row * groups + i / matrix.weight.group_size]);
    }
    weight_square += w * w;
    input_square += x * x;
  }
  // A lane adds cols / 16 terms (and one for each group of E4M3), the tree four more; a quantized
  // group costs two roundings, or four.
  const double per_group = matrix.has_minimum() ? 2 : 1;
  const double roundings = per_group * static_cast<double>(matrix.weight.cols) / 16 + 6;
  dot.bound = roundings * kEpsilon * std::sqrt(weight_square * input_square) + 1e-37;
  return dot;
}

TEST(Linear, AgainstDouble) {
  Random random(1);
  for (const Shape& shape : all_shapes()) {
    const Matrix matrix = make_matrix(random, shape);
    for (const int32_t count : {1, 2, 3, 7, 13}) {
      const Inputs inputs(random, count, shape.cols, shape.group_size);
      const std::vector<float> bias = random.normals(shape.rows);
      const std::vector<float> old = random.normals(count * shape.rows);
      const float residual_scale = 0.75f;
      for (const CpuKernels* table : available_tables()) {
        std::vector<float> plain(count * shape.rows), residual = old;
        const RowMap rows{nullptr, nullptr, count};
        table->linear(matrix.weight, 0, shape.rows, inputs.view, rows, nullptr, nullptr,
                      plain.data(), shape.rows);
        table->linear(matrix.weight, 0, shape.rows, inputs.view, rows, bias.data(), &residual_scale,
                      residual.data(), shape.rows);
        for (int32_t m = 0; m < count; ++m) {
          for (int64_t r = 0; r < shape.rows; ++r) {
            const int64_t i = m * shape.rows + r;
            const Dot dot = reference_dot(matrix, r, inputs, m);
            ASSERT_NEAR(plain[i], dot.value, dot.bound)
                << table->isa << " rows " << shape.rows << " cols " << shape.cols;
            const float value = plain[i] + bias[r];  // three roundings, in this order
            ASSERT_TRUE(same_bits(residual[i], old[i] + residual_scale * value));
          }
        }
      }
    }
  }
}

/// More rows and tokens than a kernel takes at once, in pieces that begin and end between its
/// strips.
TEST(Linear, PiecesOfManyRows) {
  Random random(14);
  constexpr int64_t kRows = 293;
  constexpr int32_t kCount = 35;
  for (const WeightFormat format :
       {WeightFormat::kInt4, WeightFormat::kInt8, WeightFormat::kInt3}) {
    for (const int32_t group_size : {32, 64, 128}) {
      for (const OffsetFormat offsets :
           {OffsetFormat::kNone, OffsetFormat::kZeroPoint, OffsetFormat::kBF16}) {
        const ScaleFormat scales = group_size == 32 ? ScaleFormat::kF16 : ScaleFormat::kBF16;
        const Shape shape{format, scales, group_size, kRows, 167, offsets};
        const Matrix gate = make_matrix(random, shape);
        const Matrix up = make_matrix(random, shape);
        const Inputs inputs(random, kCount, shape.cols, group_size);
        for (const int32_t count : {1, 2, 3, 4, kCount}) {
          const RowMap rows{nullptr, nullptr, count};
          std::vector<float> expected(count * kRows), expected_gated(count * kRows);
          portable_kernels().linear(gate.weight, 0, kRows, inputs.view, rows, nullptr, nullptr,
                                    expected.data(), kRows);
          portable_kernels().gate_up(gate.weight, up.weight, 0, kRows, inputs.view, rows,
                                     expected_gated.data(), kRows);
          for (const CpuKernels* table : vector_tables()) {
            std::vector<float> product(count * kRows, 0.5f), gated(count * kRows, 0.5f);
            for (const auto& [begin, end] :
                 {std::pair<int64_t, int64_t>{160, kRows}, {0, 144}, {144, 160}}) {
              table->linear(gate.weight, begin, end, inputs.view, rows, nullptr, nullptr,
                            product.data(), kRows);
              table->gate_up(gate.weight, up.weight, begin, end, inputs.view, rows, gated.data(),
                             kRows);
            }
            ASSERT_TRUE(same_bits(expected, product)) << table->isa << " group " << group_size;
            ASSERT_TRUE(same_bits(expected_gated, gated)) << table->isa << " group " << group_size;
          }
        }
      }
    }
  }
}

TEST(Linear, SameBitsInEveryTable) {
  if (vector_tables().empty()) GTEST_SKIP() << "no vector table runs on this machine";
  Random random(2);
  for (const Shape& shape : all_shapes()) {
    const Matrix gate = make_matrix(random, shape);
    const Matrix up = make_matrix(random, shape);
    const int32_t count = random.integer(1, 21);
    const Inputs inputs(random, count, shape.cols, shape.group_size);
    const std::vector<float> bias = random.normals(shape.rows);
    const float residual_scale = -1.3f;
    const RowMap rows{nullptr, nullptr, count};
    std::vector<float> expected;
    for (size_t i = available_tables().size(); i-- > 0;) {  // the portable table is the last
      const CpuKernels& table = *available_tables()[i];
      std::vector<float> product(count * shape.rows, 0.5f), gated(count * shape.rows);
      table.linear(gate.weight, 0, shape.rows, inputs.view, rows, bias.data(), &residual_scale,
                   product.data(), shape.rows);
      table.gate_up(gate.weight, up.weight, 0, shape.rows, inputs.view, rows, gated.data(),
                    shape.rows);
      product.insert(product.end(), gated.begin(), gated.end());
      if (expected.empty()) expected = product;
      ASSERT_TRUE(same_bits(expected, product))
          << table.isa << " rows " << shape.rows << " cols " << shape.cols << " count " << count;
    }
  }
}

/// gate_up is made of the same dots as linear.
/// Tiles of 16 rows in place of rows: the portable table's bits of the rows, in every table, for
/// the rows that are asked for and no others, with what lies behind the last one filled with NaN.
TEST(Linear, TiledFloatsAreTheirRows) {
  Random random(12);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16}) {
    for (const int64_t rows : {1, 5, 16, 19, 24, 35, 70}) {
      for (const int64_t cols : {1, 2, 8, 15, 16, 17, 31, 32, 47, 64, 100}) {
        const Matrix matrix = float_matrix(random, format, rows, cols);
        Weight tiled = matrix.weight;
        tiled.tiled = true;
        const size_t num_bytes = packed_bytes(tiled).total();
        ASSERT_EQ(num_bytes, (rows + 15) / 16 * 16 * ((cols + 1) / 2 * 2) * element_bytes(format));
        std::vector<uint8_t> tiles(num_bytes, 0xff);
        tile_float_rows(matrix.weight, tiles.data());
        tiled.data = tiles.data();
        for (const int32_t count : {1, 3, 6}) {
          const Inputs inputs(random, count, cols, 0);
          const std::vector<float> bias = random.normals(rows), old = random.normals(count * rows);
          const std::vector<int32_t> in_rows = random.permutation(count);
          const std::vector<int32_t> out_rows = random.permutation(count);
          const RowMap map{in_rows.data(), out_rows.data(), count};
          const float residual_scale = -0.7f;
          std::vector<float> expected = old;
          portable_kernels().linear(matrix.weight, 0, rows, inputs.view, map, bias.data(),
                                    &residual_scale, expected.data(), rows);
          for (const CpuKernels* table : available_tables()) {
            std::vector<float> found = old;
            const int64_t border = rows / 2 / 16 * 16;  // in two pieces, the later one first
            for (const auto& [begin, end] :
                 {std::pair{border, rows}, std::pair{int64_t{0}, border}}) {
              table->linear(tiled, begin, end, inputs.view, map, bias.data(), &residual_scale,
                            found.data(), rows);
            }
            ASSERT_TRUE(same_bits(expected, found))
                << table->isa << " " << rows << "x" << cols << " of " << count;
          }
        }
      }
    }
  }
}

TEST(GateUp, IsSiluOfGateTimesUp) {
  Random random(3);
  for (const Shape& shape : all_shapes()) {
    const Matrix gate = make_matrix(random, shape);
    const Matrix up = make_matrix(random, shape);
    const int32_t count = 9;
    const Inputs inputs(random, count, shape.cols, shape.group_size);
    const RowMap rows{nullptr, nullptr, count};
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> g(count * shape.rows), u(count * shape.rows), out(count * shape.rows);
      table->linear(gate.weight, 0, shape.rows, inputs.view, rows, nullptr, nullptr, g.data(),
                    shape.rows);
      table->linear(up.weight, 0, shape.rows, inputs.view, rows, nullptr, nullptr, u.data(),
                    shape.rows);
      table->gate_up(gate.weight, up.weight, 0, shape.rows, inputs.view, rows, out.data(),
                     shape.rows);
      for (size_t i = 0; i < out.size(); ++i) {
        const double x = g[i];
        const double expected = x / (1 + std::exp(-x)) * u[i];
        // Below -88.72 silu is -0: its denominator overflows.
        const double bound = 8 * kEpsilon * std::fabs(expected) + 3e-37 * (1 + std::fabs(u[i]));
        ASSERT_NEAR(out[i], expected, bound) << table->isa;
      }
    }
  }
}

/// gate and up may have different storage of the same class.
TEST(GateUp, MixedFormats) {
  Random random(4);
  const Matrix mixed[][2] = {
      {quantized_matrix(random, WeightFormat::kInt4, ScaleFormat::kF16, 32, 33, 64),
       quantized_matrix(random, WeightFormat::kInt8, ScaleFormat::kF32, 32, 33, 64)},
      {quantized_matrix(random, WeightFormat::kInt4, ScaleFormat::kF16, 32, 33, 64),
       quantized_matrix(random, WeightFormat::kInt4, ScaleFormat::kBF16, 32, 33, 64)},
      {quantized_matrix(random, WeightFormat::kInt3, ScaleFormat::kF16, 32, 33, 64),
       quantized_matrix(random, WeightFormat::kInt4, ScaleFormat::kF16, 32, 33, 64)},
      {float_matrix(random, WeightFormat::kF32, 33, 64),
       float_matrix(random, WeightFormat::kBF16, 33, 64)},
      {float_matrix(random, WeightFormat::kE4M3, 33, 64),
       float_matrix(random, WeightFormat::kBF16, 33, 64)}};
  for (const auto& pair : mixed) {
    for (const int32_t count : {1, 2, 4, 8}) {
      const Inputs inputs(random, count, 64, 32);
      const RowMap rows{nullptr, nullptr, count};
      for (const CpuKernels* table : available_tables()) {
        std::vector<float> out(count * 33);
        table->gate_up(pair[0].weight, pair[1].weight, 0, 33, inputs.view, rows, out.data(), 33);
        for (int32_t m = 0; m < count; ++m) {
          for (int64_t r = 0; r < 33; ++r) {
            const Dot g = reference_dot(pair[0], r, inputs, m);
            const Dot u = reference_dot(pair[1], r, inputs, m);
            const double silu = g.value / (1 + std::exp(-g.value));
            const double bound = 1.1 * g.bound * std::fabs(u.value) + u.bound * std::fabs(silu) +
                                 1.1 * g.bound * u.bound + 8 * kEpsilon * std::fabs(silu * u.value);
            ASSERT_NEAR(out[m * 33 + r], silu * u.value, bound) << table->isa;
          }
        }
      }
    }
  }
}

/// A row's bits depend on nothing but the row: neighbours, maps and row ranges change nothing.
TEST(Linear, RowsAreIndependent) {
  Random random(5);
  const Shape shapes[] = {
      {WeightFormat::kF32, ScaleFormat::kF32, 0, 50, 83},
      {WeightFormat::kBF16, ScaleFormat::kF32, 0, 33, 64},
      {WeightFormat::kF16, ScaleFormat::kF32, 0, 18, 40},
      {WeightFormat::kE4M3, ScaleFormat::kF32, 0, 35, 300},
      {WeightFormat::kInt8, ScaleFormat::kF16, 64, 50, 128},
      {WeightFormat::kInt4, ScaleFormat::kBF16, 32, 50, 96},
      {WeightFormat::kInt4, ScaleFormat::kF32, 128, 20, 256},
      {WeightFormat::kInt3, ScaleFormat::kBF16, 128, 37, 301},
      {WeightFormat::kInt3, ScaleFormat::kF16, 32, 21, 75, OffsetFormat::kZeroPoint},
      {WeightFormat::kInt4, ScaleFormat::kF16, 32, 35, 150, OffsetFormat::kF16},
      {WeightFormat::kInt8, ScaleFormat::kBF16, 64, 20, 130, OffsetFormat::kZeroPoint}};
  constexpr int32_t kRows = 70;
  for (const Shape& shape : shapes) {
    const Matrix gate = make_matrix(random, shape);
    const Matrix up = make_matrix(random, shape);
    const Inputs inputs(random, kRows, shape.cols, shape.group_size);
    const int64_t stride = shape.rows + 2;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> linear_alone(kRows * stride, 7.0f), gated_alone(kRows * stride, 7.0f);
      for (int32_t m = 0; m < kRows; ++m) {
        const RowMap one{&m, &m, 1};
        table->linear(gate.weight, 0, shape.rows, inputs.view, one, nullptr, nullptr,
                      linear_alone.data(), stride);
        table->gate_up(gate.weight, up.weight, 0, shape.rows, inputs.view, one, gated_alone.data(),
                       stride);
      }
      for (int32_t count = 2; count <= kRows; ++count) {
        const std::vector<int32_t> in_rows = random.permutation(kRows);
        const std::vector<int32_t> out_rows = random.permutation(kRows);
        const RowMap rows{in_rows.data(), out_rows.data(), count};
        std::vector<float> product(kRows * stride, 7.0f), gated(kRows * stride, 7.0f);
        std::vector<float> expected(kRows * stride, 7.0f), expected_gated(kRows * stride, 7.0f);
        for (int64_t begin = 0; begin < shape.rows;) {
          const int64_t end = std::min<int64_t>(shape.rows, begin + 16 * random.integer(1, 3));
          table->linear(gate.weight, begin, end, inputs.view, rows, nullptr, nullptr,
                        product.data(), stride);
          table->gate_up(gate.weight, up.weight, begin, end, inputs.view, rows, gated.data(),
                         stride);
          begin = end;
        }
        for (int32_t m = 0; m < count; ++m) {
          const size_t bytes = sizeof(float) * shape.rows;
          memcpy(&expected[out_rows[m] * stride], &linear_alone[in_rows[m] * stride], bytes);
          memcpy(&expected_gated[out_rows[m] * stride], &gated_alone[in_rows[m] * stride], bytes);
        }
        ASSERT_TRUE(same_bits(product, expected)) << table->isa << " count " << count;
        ASSERT_TRUE(same_bits(gated, expected_gated)) << table->isa << " count " << count;
      }
    }
  }
}

/// The same numbers in three bits, in four and in eight are the same weights: every table gives
/// them the same bits.
TEST(Linear, ThreeBitsAreAsTheSameNumbersInFour) {
  Random random(15);
  for (const int32_t group_size : {32, 64, 128}) {
    for (const OffsetFormat offsets : {OffsetFormat::kNone, OffsetFormat::kZeroPoint}) {
      for (const int64_t cols : {1, 33, 97, 128, 259, 390}) {
        constexpr int64_t kRows = 53;
        constexpr int32_t kCount = 19;
        const Matrix three = quantized_matrix(random, WeightFormat::kInt3, ScaleFormat::kBF16,
                                              group_size, kRows, cols, offsets);
        const Inputs inputs(random, kCount, cols, group_size);
        for (const WeightFormat format : {WeightFormat::kInt4, WeightFormat::kInt8}) {
          std::vector<uint8_t> data(packed_data_bytes(format, kRows, cols));
          std::vector<uint8_t> scales(three.packed_scales.size());
          pack_quantized(format, ScaleFormat::kBF16, group_size, kRows, cols, 0, kRows,
                         three.quantized.data(), three.scales.data(), data.data(), scales.data());
          Weight wider = three.weight;
          wider.format = format;
          wider.data = data.data();
          for (const CpuKernels* table : available_tables()) {
            for (const int32_t count : {1, 2, 4, 7, kCount}) {
              const RowMap rows{nullptr, nullptr, count};
              std::vector<float> expected(count * kRows), found(count * kRows);
              table->linear(wider, 0, kRows, inputs.view, rows, nullptr, nullptr, expected.data(),
                            kRows);
              table->linear(three.weight, 0, kRows, inputs.view, rows, nullptr, nullptr,
                            found.data(), kRows);
              ASSERT_TRUE(same_bits(expected, found)) << table->isa << " of " << count;
            }
            std::vector<float> expected(cols), found(cols);
            table->embed_row(wider, 17, 1.5f, expected.data());
            table->embed_row(three.weight, 17, 1.5f, found.data());
            ASSERT_TRUE(same_bits(expected, found)) << table->isa;
          }
        }
      }
    }
  }
}

/// The largest sums that the formats allow stay exact.
TEST(Linear, ExtremeQuantizedValues) {
  for (const WeightFormat format :
       {WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kInt3}) {
    const int limit = half_range(format);
    for (const int sign : {-1, 1}) {
      const std::vector<int8_t> values(16 * 256, static_cast<int8_t>(-limit));
      const std::vector<float> scales(16 * 2, 1.0f);
      std::vector<uint8_t> data(packed_data_bytes(format, 16, 256));
      std::vector<uint8_t> packed(packed_scale_bytes(ScaleFormat::kF32, 16, 256, 128));
      pack_quantized(format, ScaleFormat::kF32, 128, 16, 256, 0, 16, values.data(), scales.data(),
                     data.data(), packed.data());
      const Weight weight{.format = format,
                          .group_size = 128,
                          .rows = 16,
                          .cols = 256,
                          .data = data.data(),
                          .scales = packed.data()};
      const std::vector<int8_t> quantized(256, static_cast<int8_t>(127 * sign));
      const std::vector<float> input_scales(2, 1.0f);
      const std::vector<GroupSum> sums(
          2, {static_cast<int16_t>(127 * 128 * sign), static_cast<int16_t>(127 * 64 * sign),
              static_cast<float>(127 * 128 * sign)});
      Activations input;
      input.quantized = quantized.data();
      input.scales = input_scales.data();
      input.sums = sums.data();
      for (const CpuKernels* table : available_tables()) {
        std::vector<float> out(16);
        table->linear(weight, 0, 16, input, {nullptr, nullptr, 1}, nullptr, nullptr, out.data(),
                      16);
        for (const float value : out) {
          EXPECT_EQ(value, -sign * 127.0f * 256.0f * static_cast<float>(limit)) << table->isa;
        }
      }
    }
  }
}

/// Lanes past the last column are left alone: a dot of products that underflow to -0 is -0.
TEST(Linear, TailLanesKeepTheirSign) {
  for (const int64_t cols : {16, 17, 31}) {
    const std::vector<float> values(3 * cols, -1e-30f), x(cols, 1e-30f);
    const Weight weight{
        .format = WeightFormat::kF32, .rows = 3, .cols = cols, .data = values.data()};
    Activations input;
    input.values = x.data();
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out(3);
      table->linear(weight, 0, 3, input, {nullptr, nullptr, 1}, nullptr, nullptr, out.data(), 3);
      EXPECT_TRUE(same_bits(out, {-0.0f, -0.0f, -0.0f})) << table->isa << " " << cols;
    }
  }
}

TEST(Linear, NanReachesOnlyItsOwnRow) {
  Random random(6);
  for (const int32_t group_size : {0, 32}) {
    const Shape shape{group_size == 0 ? WeightFormat::kF32 : WeightFormat::kInt4, ScaleFormat::kF32,
                      group_size, 20, 64};
    const Matrix matrix = make_matrix(random, shape);
    Inputs inputs(random, 9, 64, group_size);
    if (group_size == 0) {
      inputs.values[4 * inputs.view.value_stride + 11] = NAN;
    } else {
      inputs.scales[4 * inputs.view.group_stride + 1] = NAN;
    }
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out(9 * 20);
      table->linear(matrix.weight, 0, 20, inputs.view, {nullptr, nullptr, 9}, nullptr, nullptr,
                    out.data(), 20);
      for (int i = 0; i < 9 * 20; ++i) EXPECT_EQ(std::isnan(out[i]), i / 20 == 4) << table->isa;
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
