// SPDX-License-Identifier: Apache-2.0
// Products grouped by expert: each place by its own expert's matrix, as the CPU kernels compute it.
#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

/// Routes of `tokens` tokens in the order that grouping leaves them, each expert's padded to tiles.
struct Groups {
  std::vector<int32_t> tile_experts;
  std::vector<int32_t> row_routes;

  Groups(const std::vector<std::vector<int32_t>>& routes_of, int tile) {
    for (size_t e = 0; e < routes_of.size(); ++e) {
      for (size_t i = 0; i < routes_of[e].size(); ++i) {
        if (i % static_cast<size_t>(tile) == 0) tile_experts.push_back(static_cast<int32_t>(e));
        row_routes.push_back(routes_of[e][i]);
      }
      while (row_routes.size() % static_cast<size_t>(tile) != 0) row_routes.push_back(-1);
    }
  }
};

TEST(CudaLinearGrouped, HasThePortableBits) {
  Random random(2);
  const int64_t rows = 37, cols = 330;
  const int32_t tokens = 11, top_k = 3, experts = 7;
  const MatrixKind kind{WeightFormat::kInt4, ScaleFormat::kF16, 32};
  std::vector<Matrix> gates, ups;
  for (int32_t e = 0; e < experts; ++e) {
    gates.push_back(make_matrix(random, kind, rows, cols));
    ups.push_back(make_matrix(random, kind, rows, cols));
  }
  const Packed gate(gates), up(ups);
  const Inputs inputs(random, tokens, cols, 32);
  const DeviceArray<uint8_t> activations =
      device_rows(inputs, tokens, cols, 32, ActivationFormat::kInt8);
  // Expert 5 gets most, 0 and 3 none.
  std::vector<std::vector<int32_t>> routes_of(experts), tokens_of(experts);
  for (int32_t route = 0; route < tokens * top_k; ++route) {
    const auto e = static_cast<size_t>(std::array{1, 2, 4, 5, 5, 5, 5, 6}[random.integer(0, 7)]);
    routes_of[e].push_back(route);
    tokens_of[e].push_back(route / top_k);
  }
  const auto bias = random.normals(static_cast<size_t>(experts * rows));
  const DeviceArray<float> device_bias(bias);
  std::vector<float> products(static_cast<size_t>(tokens * top_k * rows)), gated(products.size());
  for (size_t e = 0; e < experts; ++e) {
    const RowMap map{tokens_of[e].data(), routes_of[e].data(),
                     static_cast<int32_t>(routes_of[e].size())};
    portable_kernels().linear(gates[e].weight, 0, rows, inputs.view, map,
                              &bias[e * static_cast<size_t>(rows)], nullptr, products.data(), rows);
    portable_kernels().gate_up(gates[e].weight, ups[e].weight, 0, rows, inputs.view, map,
                               gated.data(), rows);
  }
  for (const ProductTuning& tuning : all_tunings()) {
    const Groups groups(routes_of, tuning.tokens_per_tile);
    const DeviceArray<int32_t> tile_experts(groups.tile_experts), row_routes(groups.row_routes),
        num_tiles(std::vector{static_cast<int32_t>(groups.tile_experts.size())});
    const Rows input{.activations = activations.data(),
                     .count = tokens * top_k,
                     .tile_experts = tile_experts.data(),
                     .num_tiles = num_tiles.data(),
                     .row_routes = row_routes.data(),
                     .routes_per_row = top_k};
    DeviceArray<float> out(products.size());
    ASSERT_TRUE(ok(linear(
        gate.matrix, experts, input,
        {.bias = device_bias.data(), .expert_bias = rows, .out = out.data(), .out_stride = rows},
        tuning, nullptr)));
    EXPECT_TRUE(same_bits(out.to_vector(), products)) << "tokens " << tuning.tokens_per_tile;
    out.poison();
    ASSERT_TRUE(ok(gate_up(gate.matrix, up.matrix, experts, input,
                           {.out = out.data(), .out_stride = rows}, tuning, nullptr)));
    EXPECT_TRUE(same_bits(out.to_vector(), gated)) << "tokens " << tuning.tokens_per_tile;
  }
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
