// SPDX-License-Identifier: Apache-2.0
// Products with int8 activations: the portable CPU kernels' bits, whatever the cut and the batch.
#include <bit>

#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

constexpr auto kInt8Rows = ActivationFormat::kInt8;

TEST(CudaQuantizeRows, HasThePortableBits) {
  Random random(1);
  for (const int32_t group : {32, 64, 128}) {
    for (const int64_t cols : {1, 31, 33, 127, 128, 200, 700}) {
      const int64_t count = 3;
      Inputs inputs(random, count, cols, group);
      float* row = inputs.values.data() + inputs.view.value_stride;
      if (cols > 100) {  // groups of nothing, of almost nothing, and of what has no scale
        for (int i = 0; i < 32; ++i) row[i] = 0.0f;
        row[40] = cols == 127 ? NAN : cols == 128 ? -INFINITY : 1e-38f;
      }
      inputs.values[0] = 254.0f;  // the others' halves round to even
      if (cols > 2) inputs.values[1] = 3.0f;
      const DeviceArray<uint8_t> rows = device_rows(inputs, count, cols, group, kInt8Rows);
      for (int64_t m = 0; m < count; ++m) {
        std::vector<int8_t> values(static_cast<size_t>(padded_cols(cols)));
        std::vector<float> scales(static_cast<size_t>(group_count(cols, group)));
        std::vector<GroupSum> sums(scales.size());
        portable_kernels().quantize_row(&inputs.values[m * inputs.view.value_stride], cols, group,
                                        values.data(), scales.data(), sums.data());
        const uint8_t* record = rows.data() + m * int8_row_bytes(cols);
        for (int64_t i = 0; i < int8_row_bytes(cols) / kRecordBytes * kRecordCols; ++i) {
          const auto value = static_cast<int8_t>(record[i / 128 * kRecordBytes + i % 128]);
          ASSERT_EQ(value, i < padded_cols(cols) ? values[i] : 0) << i;
        }
        for (size_t g = 0; g < scales.size(); ++g) {
          const size_t at = g * static_cast<size_t>(group);
          GroupFactor factor;
          memcpy(&factor, record + at / 128 * kRecordBytes + 128 + at % 128 / group * 8, 8);
          ASSERT_TRUE(same_bits(factor.scale, scales[g]));
          ASSERT_EQ(factor.sum, sums[g].whole);
        }
      }
    }
  }
}

std::vector<float> portable_linear(const Matrix& matrix, const Inputs& inputs, int32_t count,
                                   const float* bias, const float* residual_scale,
                                   std::vector<float> out) {
  const RowMap rows{nullptr, nullptr, count};
  portable_kernels().linear(matrix.weight, 0, matrix.weight.rows, inputs.view, rows, bias,
                            residual_scale, out.data(), matrix.weight.rows);
  return out;
}

TEST(CudaLinearInt8, HasThePortableBits) {
  Random random(2);
  size_t shape = 0;
  std::vector<MatrixKind> kinds = quantized_kinds();
  kinds.push_back({WeightFormat::kQ6K});
  kinds.push_back({WeightFormat::kQ2K});
  for (const MatrixKind& kind : kinds) {
    const int64_t rows = std::array{5, 16, 37, 83}[shape % 4];
    const int64_t cols =
        possible_cols(kind.format, std::array{31, 70, 195, 257, 640, 1037}[shape % 6]);
    const int32_t count = std::array{1, 3, 8, 11, 21}[shape % 5];
    ++shape;
    const Matrix matrix = make_matrix(random, kind, rows, cols);
    const Packed packed(matrix);
    const int32_t group = matrix.weight.group_size;
    const Inputs inputs(random, count, cols, group);
    const DeviceArray<uint8_t> activations = device_rows(inputs, count, cols, group, kInt8Rows);
    const auto bias = random.normals(static_cast<size_t>(rows));
    const DeviceArray<float> device_bias(bias);
    const auto before = random.normals(static_cast<size_t>(count * rows));
    const float residual_scale = 0.75f;
    const auto plain =
        portable_linear(matrix, inputs, count, nullptr, nullptr, std::vector<float>(before.size()));
    const auto added = portable_linear(matrix, inputs, count, bias.data(), &residual_scale, before);
    const Rows input{.activations = activations.data(), .count = count};
    // All cuts of some kinds, one of the others: the suite stays quick.
    const std::vector<ProductTuning> tunings =
        shape % 4 == 0 ? all_tunings()
                       : std::vector{all_tunings()[shape % all_tunings().size()], ProductTuning{}};
    for (const ProductTuning& tuning : tunings) {
      emulator::set_seed(shape);
      DeviceArray<float> out(plain.size()), residual(before);
      ASSERT_TRUE(ok(linear(packed.matrix, 1, input, {.out = out.data(), .out_stride = rows},
                            tuning, nullptr)));
      ASSERT_TRUE(same_bits(out.to_vector(), plain))
          << "format " << int(kind.format) << " rows " << rows << " cols " << cols << " count "
          << count << " group " << group << " tokens " << tuning.tokens_per_tile << " slices "
          << tuning.slices;
      ASSERT_TRUE(ok(linear(packed.matrix, 1, input,
                            {.bias = device_bias.data(),
                             .adds_residual = true,
                             .residual_scale = residual_scale,
                             .out = residual.data(),
                             .out_stride = rows},
                            tuning, nullptr)));
      ASSERT_TRUE(same_bits(residual.to_vector(), added));
    }
  }
}

TEST(CudaLinearInt8, GateUpHasThePortableBits) {
  Random random(3);
  const MatrixKind kinds[] = {{WeightFormat::kInt4, ScaleFormat::kF16, 128},
                              {WeightFormat::kInt4, ScaleFormat::kBF16, 32},
                              {WeightFormat::kInt3, ScaleFormat::kBF16, 128},
                              {WeightFormat::kInt8, ScaleFormat::kF32, 64, OffsetFormat::kF32},
                              {WeightFormat::kQ4K},
                              {WeightFormat::kQ6K},
                              {WeightFormat::kQ2K},
                              {WeightFormat::kMxfp4}};
  for (const MatrixKind& kind : kinds) {
    const int64_t rows = 45, cols = possible_cols(kind.format, 600), count = 13;
    const Matrix gate = make_matrix(random, kind, rows, cols);
    const Matrix up = make_matrix(random, kind, rows, cols);
    const Packed packed_gate(gate), packed_up(up);
    const Inputs inputs(random, count, cols, gate.weight.group_size);
    const DeviceArray<uint8_t> activations =
        device_rows(inputs, count, cols, gate.weight.group_size, kInt8Rows);
    std::vector<float> expected(static_cast<size_t>(count * rows));
    portable_kernels().gate_up(gate.weight, up.weight, 0, rows, inputs.view,
                               {nullptr, nullptr, count}, expected.data(), rows);
    for (const ProductTuning& tuning : all_tunings()) {
      DeviceArray<float> out(expected.size());
      const Rows input{.activations = activations.data(), .count = static_cast<int32_t>(count)};
      ASSERT_TRUE(ok(gate_up(packed_gate.matrix, packed_up.matrix, 1, input,
                             {.out = out.data(), .out_stride = rows}, tuning, nullptr)));
      ASSERT_TRUE(same_bits(out.to_vector(), expected))
          << "format " << int(kind.format) << " tokens " << tuning.tokens_per_tile;
    }
  }
}

TEST(CudaLinearInt8, CountOnTheDeviceLeavesTheOthersAlone) {
  Random random(4);
  const Matrix matrix = make_matrix(random, {WeightFormat::kInt4}, 21, 96);
  const Packed packed(matrix);
  const Inputs inputs(random, 19, 96, 32);
  const DeviceArray<uint8_t> activations = device_rows(inputs, 19, 96, 32, kInt8Rows);
  const auto expected =
      portable_linear(matrix, inputs, 19, nullptr, nullptr, std::vector<float>(19 * 21));
  for (const int32_t count : {0, 1, 8, 9, 19, 40}) {
    const DeviceArray<int32_t> device_count(std::vector<int32_t>{count});
    DeviceArray<float> out(19 * 21);
    const Rows input{
        .activations = activations.data(), .count = 19, .device_count = device_count.data()};
    ASSERT_TRUE(ok(
        linear(packed.matrix, 1, input, {.out = out.data(), .out_stride = 21}, {8, 4}, nullptr)));
    for (int32_t m = 0; m < 19; ++m) {
      for (int32_t r = 0; r < 21; ++r) {
        const float value = out[static_cast<size_t>(m * 21 + r)];
        if (m < count) {
          ASSERT_TRUE(same_bits(value, expected[static_cast<size_t>(m * 21 + r)]));
        } else {
          ASSERT_EQ(std::bit_cast<uint32_t>(value), 0xffffffffu);  // as it was
        }
      }
    }
  }
}

// As a step of 8,192 tokens and more has, with eight experts each.
TEST(CudaLinearInt8, RowsAreMoreThanAGridsSecondDimension) {
  constexpr int64_t kRows = 65539, kCols = 5, kDifferent = 7;
  Random random(6);
  const auto few = random.normals(kDifferent * kCols);
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) values[i] = few[i % few.size()];
  const DeviceArray<float> x(values);
  const auto check = [](const std::vector<uint8_t>& rows, int64_t bytes) {
    for (int64_t row = kDifferent; row < kRows; ++row) {
      const auto* at = rows.data() + row * bytes;
      const auto* same = rows.data() + row % kDifferent * bytes;
      ASSERT_EQ(std::memcmp(at, same, static_cast<size_t>(bytes)), 0) << "row " << row;
    }
  };
  DeviceArray<uint8_t> int8(static_cast<size_t>(kRows * int8_row_bytes(kCols)));
  EXPECT_TRUE(ok(quantize_rows(x.data(), kCols, kRows, kCols, 32, int8.data(), nullptr)));
  check(int8.to_vector(), int8_row_bytes(kCols));
  DeviceArray<uint8_t> bf16(static_cast<size_t>(kRows * bf16_row_bytes(kCols)));
  EXPECT_TRUE(ok(round_rows(x.data(), kCols, kRows, kCols, bf16.data(), nullptr)));
  check(bf16.to_vector(), bf16_row_bytes(kCols));
}

TEST(CudaLinearInt8, RefusesWhatItCannotDo) {
  Random random(5);
  const Packed packed(make_matrix(random, {WeightFormat::kInt4}, 16, 32));
  const Packed floats(make_matrix(random, {WeightFormat::kBF16}, 16, 32));
  const Rows rows{.count = 1};
  EXPECT_EQ(linear(packed.matrix, 1, rows, {}, {12}, nullptr).code, kInvalidArguments);
  EXPECT_EQ(linear(packed.matrix, 1, rows, {}, {16, 3}, nullptr).code, kInvalidArguments);
  EXPECT_EQ(linear(packed.matrix, 2, rows, {}, {8}, nullptr).code, kInvalidArguments);
  EXPECT_EQ(linear(floats.matrix, 1, rows, {}, {8}, nullptr).code, kInvalidArguments);
  EXPECT_EQ(linear(packed.matrix, 1, {}, {}, {8}, nullptr).code, kInvalidArguments);
  EXPECT_EQ(gate_up(packed.matrix, floats.matrix, 1, rows, {}, {8}, nullptr).code,
            kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
