// Products grouped by expert: each place by its own expert's matrix, as the CPU kernels compute it.
#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

/// Places sorted by expert, as the router's choice gives them.
struct Routes {
  std::vector<int32_t> begin;     // [experts + 1]
  std::vector<int32_t> in_rows;   // by place
  std::vector<int32_t> out_rows;  // by place
  int32_t places() const { return begin.back(); }
};

Routes make_routes(Random& random, const std::vector<int32_t>& counts, int32_t tokens) {
  Routes routes;
  routes.begin = {0};
  for (const int32_t count : counts) routes.begin.push_back(routes.begin.back() + count);
  for (int32_t p = 0; p < routes.places(); ++p) {
    routes.in_rows.push_back(random.integer(0, tokens - 1));
  }
  routes.out_rows = random.permutation(routes.places());
  return routes;
}

TEST(CudaGroupTiles, CoverEveryPlaceOnce) {
  Random random(1);
  for (const int32_t experts : {1, 7, 128, 129, 300}) {
    std::vector<int32_t> counts;
    for (int32_t e = 0; e < experts; ++e) {
      counts.push_back(random.integer(0, 2) == 0 ? random.integer(1, 70) : 0);
    }
    const Routes routes = make_routes(random, counts, 3);
    for (const int tokens : {8, 64}) {
      const DeviceArray<int32_t> begin(routes.begin);
      DeviceArray<GroupTile> tiles(
          static_cast<size_t>(most_group_tiles(routes.places(), experts, tokens)));
      DeviceArray<int32_t> count(1);
      ASSERT_TRUE(ok(list_group_tiles(begin.data(), experts, tokens, tiles.data(), count.data(),
                                      nullptr)));
      ASSERT_LE(count[0], static_cast<int32_t>(tiles.size()));
      int32_t place = 0;
      for (int32_t i = 0; i < count[0]; ++i) {
        const GroupTile& tile = tiles[static_cast<size_t>(i)];
        EXPECT_EQ(tile.first, place);
        EXPECT_GE(tile.count, 1);
        EXPECT_LE(tile.count, tokens);
        EXPECT_GE(tile.first, routes.begin[static_cast<size_t>(tile.expert)]);
        place += tile.count;
        EXPECT_LE(place, routes.begin[static_cast<size_t>(tile.expert) + 1]);
      }
      EXPECT_EQ(place, routes.places());
    }
  }
}

TEST(CudaLinearGrouped, HasThePortableBits) {
  Random random(2);
  const int64_t rows = 37, cols = 330;
  const int32_t tokens = 12;
  const std::vector<int32_t> counts = {0, 3, 1, 0, 0, 19, 8, 0};
  const auto experts = static_cast<int32_t>(counts.size());
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
  const Routes routes = make_routes(random, counts, tokens);
  const auto bias = random.normals(static_cast<size_t>(experts * rows));
  const DeviceArray<float> device_bias(bias);
  const DeviceArray<int32_t> begin(routes.begin), in_rows(routes.in_rows),
      out_rows(routes.out_rows);
  std::vector<float> products(static_cast<size_t>(routes.places() * rows)), gated(products.size());
  for (int32_t e = 0; e < experts; ++e) {
    const auto first = static_cast<size_t>(routes.begin[static_cast<size_t>(e)]);
    const RowMap map{&routes.in_rows[first], &routes.out_rows[first],
                     counts[static_cast<size_t>(e)]};
    const auto i = static_cast<size_t>(e);
    portable_kernels().linear(gates[i].weight, 0, rows, inputs.view, map, &bias[i * rows], nullptr,
                              products.data(), rows);
    portable_kernels().gate_up(gates[i].weight, ups[i].weight, 0, rows, inputs.view, map,
                               gated.data(), rows);
  }
  for (const ProductTuning& tuning : all_tunings()) {
    DeviceArray<GroupTile> tiles(static_cast<size_t>(
        most_group_tiles(routes.places(), experts, tuning.tokens_per_tile)));
    DeviceArray<int32_t> tile_count(1);
    ASSERT_TRUE(ok(list_group_tiles(begin.data(), experts, tuning.tokens_per_tile, tiles.data(),
                                    tile_count.data(), nullptr)));
    const Rows input{.activations = activations.data(),
                     .in_rows = in_rows.data(),
                     .out_rows = out_rows.data(),
                     .count = routes.places(),
                     .tiles = tiles.data(),
                     .tile_count = tile_count.data()};
    DeviceArray<float> out(products.size());
    ASSERT_TRUE(ok(linear(gate.matrix, experts, input,
                          {.bias = device_bias.data(),
                           .expert_bias = rows,
                           .out = out.data(),
                           .out_stride = rows},
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
