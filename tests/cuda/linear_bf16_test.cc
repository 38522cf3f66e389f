// SPDX-License-Identifier: Apache-2.0
// Products with bf16 activations: against double precision, and the same bits in every cut, alone
// and in a batch.
#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

constexpr auto kBf16Rows = ActivationFormat::kBF16;

std::vector<double> reference(const Matrix& matrix, const Inputs& inputs, int64_t count) {
  const int64_t rows = matrix.weight.rows, cols = matrix.weight.cols;
  std::vector<double> out(static_cast<size_t>(count * rows));
  for (int64_t m = 0; m < count; ++m) {
    for (int64_t r = 0; r < rows; ++r) {
      double& sum = out[static_cast<size_t>(m * rows + r)];
      for (int64_t i = 0; i < cols; ++i) {
        const float x = inputs.values[static_cast<size_t>(m * inputs.view.value_stride + i)];
        sum += matrix.at(r, i) * widen_bf16(narrow_bf16(x));
      }
    }
  }
  return out;
}

std::vector<MatrixKind> all_kinds() {
  std::vector<MatrixKind> kinds = quantized_kinds();
  kinds.push_back({WeightFormat::kBF16});
  kinds.push_back({WeightFormat::kE4M3});
  // Halves of groups with scales of their own take int8 rows.
  std::erase_if(kinds, [](const MatrixKind& kind) {
    return kind.format == WeightFormat::kBlocks && kind.block_format == BlockFormat::kIq2Xs;
  });
  return kinds;
}

std::vector<float> run(const PackedMatrix& matrix, const uint8_t* activations, int32_t count,
                       const ProductTuning& tuning) {
  const int64_t rows = matrix.layout.rows;
  DeviceArray<float> out(static_cast<size_t>(count * rows));
  const Rows input{.format = kBf16Rows, .activations = activations, .count = count};
  EXPECT_TRUE(
      ok(linear(matrix, 1, input, {.out = out.data(), .out_stride = rows}, tuning, nullptr)));
  return out.to_vector();
}

TEST(CudaLinearBf16, AgainstDoubleInEveryCut) {
  Random random(1);
  size_t shape = 0;
  for (const MatrixKind& kind : all_kinds()) {
    const int64_t rows = std::array{5, 16, 37, 83}[shape % 4];
    const int64_t cols = possible_cols(kind.format, std::array{31, 70, 195, 257, 640}[shape % 5]);
    const int32_t count = std::array{1, 3, 8, 11}[shape / 2 % 4];
    ++shape;
    const Matrix matrix = make_matrix(random, kind, rows, cols);
    const Packed packed(matrix);
    const Inputs inputs(random, count, cols, 0);
    const DeviceArray<uint8_t> activations = device_rows(inputs, count, cols, 0, kBf16Rows);
    const std::vector<double> expected = reference(matrix, inputs, count);
    std::vector<float> first;
    const auto tunings = all_tunings();
    for (size_t i = 0; i < tunings.size(); ++i) {
      if (shape % 4 != 0 && i > 1 && i != 2 + shape % 3) continue;
      emulator::set_seed(shape);
      const std::vector<float> out = run(packed.matrix, activations.data(), count, tunings[i]);
      if (first.empty()) first = out;
      ASSERT_TRUE(same_bits(out, first)) << "cut " << i;
    }
    double difference = 0, size = 0;
    for (size_t i = 0; i < first.size(); ++i) {
      difference += std::pow(first[i] - expected[i], 2);
      size += std::pow(expected[i], 2);
    }
    // A minimum's product cancels against the scale's: the sum is smaller than its terms.
    const double bound = kind.offset_format == OffsetFormat::kNone ? 4e-6 : 4e-5;
    ASSERT_LE(std::sqrt(difference), bound * std::sqrt(size))
        << "format " << int(kind.format) << " scales " << int(kind.scale_format) << " group "
        << kind.group_size << " offsets " << int(kind.offset_format) << " cols " << cols;
  }
}

TEST(CudaLinearBf16, AloneAndInABatch) {
  Random random(2);
  const MatrixKind kinds[] = {{WeightFormat::kInt4, ScaleFormat::kF16, 128},
                              {WeightFormat::kInt8, ScaleFormat::kBF16, 64},
                              {WeightFormat::kMxfp4},
                              {WeightFormat::kQ4K},
                              {WeightFormat::kE4M3},
                              {WeightFormat::kBF16}};
  for (const MatrixKind& kind : kinds) {
    const int64_t rows = 35, cols = possible_cols(kind.format, 400);
    const int32_t count = 70;
    const Matrix matrix = make_matrix(random, kind, rows, cols);
    const Packed packed(matrix);
    const Inputs inputs(random, count, cols, 0);
    const DeviceArray<uint8_t> activations = device_rows(inputs, count, cols, 0, kBf16Rows);
    const std::vector<float> all = run(packed.matrix, activations.data(), count, {32});
    for (const int32_t m : {0, 9, 66}) {
      const uint8_t* row = activations.data() + m * bf16_row_bytes(cols);
      const std::vector<float> alone = run(packed.matrix, row, 1, {8, m == 9 ? 4 : 1});
      ASSERT_TRUE(same_bits(
          alone, std::vector<float>(all.begin() + m * rows, all.begin() + (m + 1) * rows)));
    }
  }
}

TEST(CudaLinearBf16, GateUpIsWhatItsProductsSay) {
  Random random(3);
  const int64_t rows = 40, cols = 300;
  const int32_t count = 9;
  const Matrix gate = make_matrix(random, {WeightFormat::kInt4, ScaleFormat::kF16, 32}, rows, cols);
  const Matrix up = make_matrix(random, {WeightFormat::kInt4, ScaleFormat::kF16, 32}, rows, cols);
  const Packed packed_gate(gate), packed_up(up);
  const Inputs inputs(random, count, cols, 0);
  const DeviceArray<uint8_t> activations = device_rows(inputs, count, cols, 0, kBf16Rows);
  const auto gates = run(packed_gate.matrix, activations.data(), count, {8});
  const auto ups = run(packed_up.matrix, activations.data(), count, {8});
  for (const ProductTuning& tuning : all_tunings()) {
    DeviceArray<uint16_t> out(static_cast<size_t>(count * rows));
    const Rows input{.format = kBf16Rows, .activations = activations.data(), .count = count};
    ASSERT_TRUE(
        ok(gate_up(packed_gate.matrix, packed_up.matrix, 1, input,
                   {.out = out.data(), .out_stride = rows, .out_format = FloatFormat::kBF16},
                   tuning, nullptr)));
    for (size_t i = 0; i < out.size(); ++i) {
      const double silu = gates[i] / (1.0 + std::exp(-double{gates[i]}));
      const double value = silu * ups[i];
      ASSERT_NEAR(widen_bf16(out[i]), value, std::fabs(value) * 0x1.01p-8 + 1e-30);
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
