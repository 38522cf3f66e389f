// SPDX-License-Identifier: Apache-2.0
// What the tests of the products share: matrices of every packed kind, packed on a "device".
#pragma once

#include <numeric>

#include "kernels/cuda/linear/linear.h"
#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {

using kernels::testing::float_matrix;
using kernels::testing::Inputs;
using kernels::testing::Matrix;
using kernels::testing::quantized_matrix;

/// A kind of matrix that the tensor cores take.
struct MatrixKind {
  WeightFormat format;
  ScaleFormat scale_format = ScaleFormat::kF32;
  int32_t group_size = 32;
  OffsetFormat offset_format = OffsetFormat::kNone;
  BlockFormat block_format = BlockFormat::kQ5_0;  // of kBlocks
};

inline OffsetFormat minimum_of(ScaleFormat format) {
  return format == ScaleFormat::kF16    ? OffsetFormat::kF16
         : format == ScaleFormat::kBF16 ? OffsetFormat::kBF16
                                        : OffsetFormat::kF32;
}

/// Every combination of number, scale, group and offset.
inline std::vector<MatrixKind> quantized_kinds() {
  std::vector<MatrixKind> kinds;
  for (const WeightFormat format : {WeightFormat::kInt4, WeightFormat::kInt8}) {
    for (const ScaleFormat scales : {ScaleFormat::kF32, ScaleFormat::kF16, ScaleFormat::kBF16}) {
      for (const int32_t group : {32, 64, 128}) {
        for (const OffsetFormat offsets :
             {OffsetFormat::kNone, OffsetFormat::kZeroPoint, minimum_of(scales)}) {
          kinds.push_back({format, scales, group, offsets});
        }
      }
    }
  }
  for (const int32_t group : {32, 64, 128}) {
    kinds.push_back({WeightFormat::kInt3, ScaleFormat::kBF16, group});
    kinds.push_back({WeightFormat::kInt3, ScaleFormat::kF32, group, OffsetFormat::kF32});
    kinds.push_back({WeightFormat::kInt3, ScaleFormat::kF16, group, OffsetFormat::kZeroPoint});
  }
  kinds.push_back({WeightFormat::kMxfp4});
  kinds.push_back({WeightFormat::kQ4K});
  for (const BlockFormat format : {BlockFormat::kQ5_0, BlockFormat::kQ5_1, BlockFormat::kIq4Xs,
                                   BlockFormat::kIq2Xs, BlockFormat::kIq1S}) {
    kinds.push_back({.format = WeightFormat::kBlocks, .block_format = format});
  }
  return kinds;
}

/// The columns nearest to `cols` that a matrix of this format can have.
inline int64_t possible_cols(WeightFormat format, int64_t cols) {
  const bool super =
      format == WeightFormat::kQ4K || format == WeightFormat::kQ6K || format == WeightFormat::kQ2K;
  const int64_t step = super || format == WeightFormat::kBlocks ? 256
                       : format == WeightFormat::kMxfp4         ? 32
                                                                : 1;
  return (cols + step - 1) / step * step;
}

/// A matrix of random blocks, with finite scales of about one size.
inline Matrix block_matrix(Random& random, BlockFormat format, int64_t rows, int64_t cols) {
  Matrix matrix;
  matrix.weight = block_weight(format, rows, cols);
  const int64_t row_bytes = block_row_bytes(format, cols);
  std::vector<uint8_t> blocks(static_cast<size_t>(rows * row_bytes));
  for (uint8_t& byte : blocks) byte = static_cast<uint8_t>(random.integer(0, 255));
  const int64_t block_bytes = row_bytes / (cols / block_cols(format));
  for (size_t i = 0; i < blocks.size(); i += static_cast<size_t>(block_bytes)) {
    if (format == BlockFormat::kMxfp4) {
      blocks[i] = static_cast<uint8_t>(random.integer(118, 124));
      continue;
    }
    const bool q6k = format == BlockFormat::kQ6_K;
    const size_t first = q6k ? 208 : format == BlockFormat::kQ2_K ? 80 : 0;
    for (size_t half = 0; half < (q6k ? 1 : 2); ++half) {  // d; of Q4_K and Q2_K dmin too
      const uint16_t bits = narrow_f16(0.0005f * static_cast<float>(random.integer(1, 40)));
      memcpy(&blocks[i + first + 2 * half], &bits, 2);
    }
  }
  const WeightBytes bytes = kernels::packed_bytes(matrix.weight);
  matrix.data.resize(bytes.data);
  matrix.packed_scales.resize(bytes.scales);
  matrix.packed_offsets.resize(bytes.offsets);
  EXPECT_EQ(pack_blocks(format, matrix.weight, 0, rows, blocks.data(), matrix.data.data(),
                        matrix.packed_scales.data(), matrix.packed_offsets.data()),
            -1);
  matrix.weight.data = matrix.data.data();
  matrix.weight.scales = matrix.packed_scales.data();
  matrix.weight.offsets = matrix.packed_offsets.data();
  std::vector<float> row(static_cast<size_t>(cols));
  for (int64_t r = 0; r < rows; ++r) {
    portable_kernels().embed_row(matrix.weight, r, 1.0f, row.data());
    matrix.exact.insert(matrix.exact.end(), row.begin(), row.end());
  }
  return matrix;
}

inline Matrix make_matrix(Random& random, const MatrixKind& kind, int64_t rows, int64_t cols) {
  switch (kind.format) {
    case WeightFormat::kQ4K: return block_matrix(random, BlockFormat::kQ4_K, rows, cols);
    case WeightFormat::kQ2K: return block_matrix(random, BlockFormat::kQ2_K, rows, cols);
    case WeightFormat::kQ6K: return block_matrix(random, BlockFormat::kQ6_K, rows, cols);
    case WeightFormat::kMxfp4: return block_matrix(random, BlockFormat::kMxfp4, rows, cols);
    case WeightFormat::kBlocks: return block_matrix(random, kind.block_format, rows, cols);
    case WeightFormat::kE4M3:
    case WeightFormat::kBF16: return float_matrix(random, kind.format, rows, cols);
    default:
      return quantized_matrix(random, kind.format, kind.scale_format, kind.group_size, rows, cols,
                              kind.offset_format);
  }
}

/// Matrices of one shape packed behind one another, as a grouped product reads experts.
struct Packed {
  PackedMatrix matrix;
  DeviceArray<uint8_t> memory;

  explicit Packed(std::span<const Matrix> experts)
      : matrix{packed_layout(experts[0].weight), nullptr},
        memory(static_cast<size_t>(matrix.layout.bytes()) * experts.size()) {
    matrix.data = memory.data();
    for (size_t e = 0; e < experts.size(); ++e) {
      pack_matrix(experts[e].weight, 0, experts[e].weight.rows,
                  memory.data() + static_cast<int64_t>(e) * matrix.layout.bytes());
    }
  }
  explicit Packed(const Matrix& single) : Packed(std::span(&single, 1)) {}
};

/// The rows of `inputs` as the device's rows.
inline DeviceArray<uint8_t> device_rows(const Inputs& inputs, int64_t count, int64_t cols,
                                        int32_t group_size, ActivationFormat format) {
  const bool bf16 = format == ActivationFormat::kBF16;
  const DeviceArray<float> values(inputs.values);
  DeviceArray<uint8_t> rows(
      static_cast<size_t>(count * (bf16 ? bf16_row_bytes(cols) : int8_row_bytes(cols))));
  const int64_t stride = inputs.view.value_stride;
  const auto make = [&] {
    if (bf16) return round_rows(values.data(), stride, count, cols, rows.data(), nullptr);
    if (format == ActivationFormat::kE4M3) {
      return quantize_rows_e4m3(values.data(), stride, count, cols, rows.data(), nullptr);
    }
    return quantize_rows(values.data(), stride, count, cols, group_size, rows.data(), nullptr);
  };
  EXPECT_TRUE(ok(make()));
  return rows;
}

/// Every cut of a product.
inline std::vector<ProductTuning> all_tunings() {
  return {{8, 1}, {8, 4}, {16, 1}, {32, 1}, {8, 2}, {8, 8}, {16, 2}, {16, 8}};
}

}  // namespace vitrine::kernels::cuda::testing
