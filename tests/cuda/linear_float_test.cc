// SPDX-License-Identifier: Apache-2.0
// Products of float matrices: the portable CPU kernels' bits.
#include "kernels/cuda/linear/linear_float.h"

#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

FloatFormat device_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32: return FloatFormat::kF32;
    case WeightFormat::kF16: return FloatFormat::kF16;
    case WeightFormat::kE4M3: return FloatFormat::kE4M3;
    default: return FloatFormat::kBF16;
  }
}

TEST(CudaLinearFloat, HasThePortableBits) {
  Random random(1);
  size_t shape = 0;
  for (const WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kE4M3}) {
    for (const int64_t cols : {1, 15, 17, 130, 511, 512, 1037}) {
      const int64_t rows = std::array{1, 17, 33}[shape % 3];
      const int32_t count = std::array{1, 4, 7, 2}[shape++ % 4];
      const Matrix gate = float_matrix(random, format, rows, cols);
      const Matrix up = float_matrix(random, format, rows, cols);
      const Inputs inputs(random, count, cols, 0);
      const auto bias = random.normals(static_cast<size_t>(rows));
      const auto before = random.normals(static_cast<size_t>(count * rows));
      const float residual_scale = -1.5f;
      std::vector<float> added = before, gated(before.size());
      const RowMap map{nullptr, nullptr, count};
      portable_kernels().linear(gate.weight, 0, rows, inputs.view, map, bias.data(),
                                &residual_scale, added.data(), rows);
      portable_kernels().gate_up(gate.weight, up.weight, 0, rows, inputs.view, map, gated.data(),
                                 rows);
      const DeviceArray<uint8_t> gate_data(gate.data), up_data(up.data);
      const DeviceArray<float> values(inputs.values), device_bias(bias);
      const DeviceArray<float> gate_scales(gate.scales), up_scales(up.scales);  // of E4M3
      const FloatMatrix device_gate{device_format(format), rows, cols, gate_data.data(),
                                    gate_scales.data()};
      const FloatMatrix device_up{device_format(format), rows, cols, up_data.data(),
                                  up_scales.data()};
      const FloatRows input{values.data(), inputs.view.value_stride, {.count = count}};
      DeviceArray<float> residual(before), out(before.size());
      emulator::set_seed(shape);
      ASSERT_TRUE(ok(linear_float(device_gate, 1, input,
                                  {.bias = device_bias.data(),
                                   .adds_residual = true,
                                   .residual_scale = residual_scale,
                                   .out = residual.data(),
                                   .out_stride = rows},
                                  nullptr)));
      ASSERT_TRUE(same_bits(residual.to_vector(), added)) << "rows " << rows << " cols " << cols;
      ASSERT_TRUE(ok(gate_up_float(device_gate, device_up, 1, input,
                                   {.out = out.data(), .out_stride = rows}, nullptr)));
      ASSERT_TRUE(same_bits(out.to_vector(), gated)) << "rows " << rows << " cols " << cols;
    }
  }
}

void expect_grouped_bits(WeightFormat format, int64_t cols) {
  Random random(2);
  const int64_t rows = 19;
  const int32_t tile_rows = 8, experts = 3;
  // Tiles of experts 2 and 0; routes of two a token; what is behind two tiles is not read.
  const std::vector<int32_t> tile_experts = {2, 0, -1};
  const std::vector<int32_t> routes = {0, 3, 4, 7, 9, -1, -1, -1, 1, 5, -1, -1, -1, -1, -1, -1};
  std::vector<Matrix> matrices;
  std::vector<uint8_t> bytes;
  std::vector<float> scales;
  for (int32_t e = 0; e < experts; ++e) {
    matrices.push_back(float_matrix(random, format, rows, cols));
    const Matrix& matrix = matrices.back();
    bytes.insert(bytes.end(), matrix.data.begin(), matrix.data.end());
    scales.insert(scales.end(), matrix.scales.begin(), matrix.scales.end());
  }
  const Inputs inputs(random, 5, cols, 0);
  std::vector<float> expected(10 * static_cast<size_t>(rows), 7.0f);
  for (size_t i = 0; i < routes.size(); ++i) {
    if (routes[i] < 0) continue;
    const int32_t token = routes[i] / 2;
    portable_kernels().linear(matrices[static_cast<size_t>(tile_experts[i / 8])].weight, 0, rows,
                              inputs.view, {&token, &routes[i], 1}, nullptr, nullptr,
                              expected.data(), rows);
  }
  const DeviceArray<uint8_t> data(bytes);
  const DeviceArray<float> values(inputs.values), device_scales(scales);
  const FloatMatrix all{device_format(format), rows, cols, data.data(), device_scales.data()};
  const DeviceArray<int32_t> device_experts(tile_experts), device_routes(routes),
      num_tiles(std::vector{2});
  FloatRows input{values.data(), inputs.view.value_stride, {.count = 10}, tile_rows};
  input.map.tile_experts = device_experts.data();
  input.map.num_tiles = num_tiles.data();
  input.map.row_routes = device_routes.data();
  input.map.routes_per_row = 2;
  DeviceArray<float> out(std::vector<float>(expected.size(), 7.0f));
  ASSERT_TRUE(
      ok(linear_float(all, experts, input, {.out = out.data(), .out_stride = rows}, nullptr)));
  EXPECT_TRUE(same_bits(out.to_vector(), expected));
  input.tile_rows = 6;
  EXPECT_EQ(linear_float(all, experts, input, {}, nullptr).code, kInvalidArguments);
}

TEST(CudaLinearFloat, GroupedHasThePortableBits) {
  expect_grouped_bits(WeightFormat::kBF16, 75);
  expect_grouped_bits(WeightFormat::kE4M3, 150);
}

TEST(CudaLinearFloat, E4M3NeedsScales) {
  const DeviceArray<uint8_t> data(16);
  const DeviceArray<float> values(16);
  DeviceArray<float> out(1);
  const FloatMatrix matrix{FloatFormat::kE4M3, 1, 16, data.data()};
  const FloatRows input{values.data(), 16, {.count = 1}};
  EXPECT_EQ(linear_float(matrix, 1, input, {.out = out.data(), .out_stride = 1}, nullptr).code,
            kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
