// SPDX-License-Identifier: Apache-2.0
// A layer's experts from the norm to the residual stream, kernel after kernel with nothing read
// back in between: the portable CPU kernels' bits, for a token alone and in a batch.
#include "kernels/cuda/combine/combine.h"
#include "kernels/cuda/linear/linear_float.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "kernels/cuda/router/router.h"
#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

constexpr int32_t kExperts = 6, kTopK = 2;
constexpr int64_t kHidden = 200, kIntermediate = 72;
constexpr int32_t kGroup = 64;
constexpr float kEps = 1e-6f;

struct Layer {
  std::vector<float> norm;
  Matrix router;
  std::vector<Matrix> gate, up, down;

  explicit Layer(Random& random)
      : norm(random.normals(kHidden)),
        router(float_matrix(random, WeightFormat::kBF16, kExperts, kHidden)) {
    const MatrixKind kind{WeightFormat::kInt4, ScaleFormat::kF16, kGroup};
    for (int32_t e = 0; e < kExperts; ++e) {
      gate.push_back(make_matrix(random, kind, kIntermediate, kHidden));
      up.push_back(make_matrix(random, kind, kIntermediate, kHidden));
      down.push_back(make_matrix(random, kind, kHidden, kIntermediate));
    }
  }
};

/// One row's quantized form, as the CPU kernels read it.
struct QuantizedRow {
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<GroupSum> sums;

  QuantizedRow(const float* x, int64_t n)
      : values(static_cast<size_t>(padded_cols(n))),
        scales(static_cast<size_t>(group_count(n, kGroup))),
        sums(scales.size()) {
    portable_kernels().quantize_row(x, n, kGroup, values.data(), scales.data(), sums.data());
  }
  Activations view() const {
    return {.quantized = values.data(), .scales = scales.data(), .sums = sums.data()};
  }
};

void portable_token(const Layer& layer, float* residual) {
  const CpuKernels& cpu = portable_kernels();
  const RowMap row{nullptr, nullptr, 1};
  std::vector<float> normed(kHidden), logits(kExperts), probs(kExperts), weights(kTopK);
  cpu.rms_norm(residual, layer.norm.data(), kEps, kHidden, normed.data());
  cpu.linear(layer.router.weight, 0, kExperts, {.values = normed.data()}, row, nullptr, nullptr,
             logits.data(), kExperts);
  std::vector<int32_t> ids(kTopK);
  cpu.router_top_k(logits.data(), kExperts, kTopK, true, false, probs.data(), ids.data(),
                   weights.data());
  const QuantizedRow input(normed.data(), kHidden);
  std::vector<float> slots(kTopK * kHidden), hidden(kIntermediate);
  for (int32_t slot = 0; slot < kTopK; ++slot) {
    const auto e = static_cast<size_t>(ids[static_cast<size_t>(slot)]);
    cpu.gate_up(layer.gate[e].weight, layer.up[e].weight, 0, kIntermediate, input.view(), row,
                hidden.data(), kIntermediate);
    const QuantizedRow quantized(hidden.data(), kIntermediate);
    cpu.linear(layer.down[e].weight, 0, kHidden, quantized.view(), row, nullptr, nullptr,
               &slots[static_cast<size_t>(slot * kHidden)], kHidden);
  }
  cpu.combine(slots.data(), kHidden, weights.data(), kTopK, nullptr, 0.0f, 1.0f, kHidden, residual);
}

/// The layer's matrices on the device.
struct DeviceLayer {
  DeviceArray<float> norm;
  DeviceArray<uint8_t> router;
  Packed gate, up, down;

  explicit DeviceLayer(const Layer& layer)
      : norm(layer.norm),
        router(layer.router.data),
        gate(layer.gate),
        up(layer.up),
        down(layer.down) {}
};

std::vector<float> device_tokens(DeviceLayer& layer, const std::vector<float>& before,
                                 int32_t tokens, const ProductTuning& tuning) {
  const auto n = static_cast<size_t>(tokens), routes = n * kTopK;
  DeviceArray<float> residual(before), normed(before.size()), logits(n * kExperts);
  DeviceArray<uint8_t> rows(n * static_cast<size_t>(int8_row_bytes(kHidden)));
  EXPECT_TRUE(ok(rms_norm({.n = kHidden,
                           .eps = kEps,
                           .weight = layer.norm.data(),
                           .residual = residual.data(),
                           .out = normed.data(),
                           .int8_rows = rows.data(),
                           .group_size = kGroup},
                          tokens, nullptr)));
  EXPECT_TRUE(ok(linear_float({FloatFormat::kBF16, kExperts, kHidden, layer.router.data()}, 1,
                              {normed.data(), kHidden, {.count = tokens}},
                              {.out = logits.data(), .out_stride = kExperts}, nullptr)));
  DeviceArray<int32_t> ids(routes);
  DeviceArray<float> weights(routes), probs(n * kExperts);
  EXPECT_TRUE(ok(router_top_k({.num_experts = kExperts,
                               .top_k = kTopK,
                               .normalize = true,
                               .logits = logits.data(),
                               .ids = ids.data(),
                               .weights = weights.data(),
                               .probs = probs.data()},
                              tokens, nullptr)));
  const int32_t tile = tuning.tokens_per_tile;
  const auto tiles = static_cast<size_t>(most_tiles(tokens, kTopK, kExperts, tile));
  DeviceArray<int32_t> counts(kExperts), offsets(kExperts + 1), slot_rows(routes), num_tiles(1),
      row_routes(tiles * static_cast<size_t>(tile)), tile_experts(tiles);
  EXPECT_TRUE(ok(group_by_expert({.num_experts = kExperts,
                                  .top_k = kTopK,
                                  .tile_rows = tile,
                                  .ids = ids.data(),
                                  .counts = counts.data(),
                                  .offsets = offsets.data(),
                                  .row_routes = row_routes.data(),
                                  .slot_rows = slot_rows.data(),
                                  .tile_experts = tile_experts.data(),
                                  .num_tiles = num_tiles.data()},
                                 tokens, nullptr)));
  Rows input{.activations = rows.data(),
             .count = static_cast<int32_t>(routes),
             .tile_experts = tile_experts.data(),
             .num_tiles = num_tiles.data(),
             .row_routes = row_routes.data(),
             .routes_per_row = kTopK};
  DeviceArray<float> hidden(routes * kIntermediate), slots(routes * kHidden);
  EXPECT_TRUE(ok(gate_up(layer.gate.matrix, layer.up.matrix, kExperts, input,
                         {.out = hidden.data(), .out_stride = kIntermediate}, tuning, nullptr)));
  DeviceArray<uint8_t> hidden_rows(routes * static_cast<size_t>(int8_row_bytes(kIntermediate)));
  EXPECT_TRUE(ok(quantize_rows(hidden.data(), kIntermediate, static_cast<int64_t>(routes),
                               kIntermediate, kGroup, hidden_rows.data(), nullptr)));
  input.activations = hidden_rows.data();
  input.routes_per_row = 1;
  EXPECT_TRUE(ok(linear(layer.down.matrix, kExperts, input,
                        {.out = slots.data(), .out_stride = kHidden}, tuning, nullptr)));
  EXPECT_TRUE(ok(add_to_residual({.kind = Addend::Kind::kExperts,
                                  .slots = slots.data(),
                                  .weights = weights.data(),
                                  .top_k = kTopK},
                                 tokens, kHidden, residual.data(), nullptr)));
  return residual.to_vector();
}

TEST(CudaExpertLayer, HasThePortableBitsAloneAndInABatch) {
  Random random(1);
  const Layer layer(random);
  DeviceLayer device(layer);
  const int32_t tokens = 13;
  const auto before = random.normals(tokens * kHidden);
  std::vector<float> expected = before;
  for (int32_t t = 0; t < tokens; ++t) portable_token(layer, &expected[t * kHidden]);
  uint64_t seed = 0;
  for (const ProductTuning& tuning : all_tunings()) {
    emulator::set_seed(++seed);
    EXPECT_TRUE(same_bits(device_tokens(device, before, tokens, tuning), expected))
        << "tokens " << tuning.tokens_per_tile << " slices " << tuning.slices;
  }
  for (const int32_t t : {0, 7}) {
    const auto at = before.begin() + t * kHidden;
    const std::vector<float> alone(at, at + kHidden);
    const auto own = expected.begin() + t * kHidden;
    EXPECT_TRUE(
        same_bits(device_tokens(device, alone, 1, {8, 4}), std::vector<float>(own, own + kHidden)));
  }
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
