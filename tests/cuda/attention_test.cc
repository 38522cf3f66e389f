// SPDX-License-Identifier: Apache-2.0
// Paged attention: the portable CPU kernel's bits, and the same bits for a token in whatever tile.
#include "tests/cuda/attention_fixture.h"

namespace vitrine::kernels::cuda::testing {
namespace {

TEST(CudaAttention, HasThePortableBitsInDecodeAndPrefill) {
  Random random(1);
  const Shape shapes[] = {{FloatFormat::kF32, 12, 2, 3},  {FloatFormat::kBF16, 64, 1, 8},
                          {FloatFormat::kF16, 40, 2, 1},  {FloatFormat::kBF16, 136, 1, 4},
                          {FloatFormat::kF32, 256, 1, 2}, {FloatFormat::kF16, 8, 1, 20}};
  uint64_t seed = 0;
  for (const Shape& shape : shapes) {
    Stores stores(random, shape, {150, 65, 3});
    Batch batch;
    batch.add(0, 58, 70);    // a chunk across a block's end
    batch.add(1, 64, 64);    // decode
    batch.add(2, 0, 2);      // a whole prompt
    batch.add(0, 149, 149);  // decode of a long one
    const auto queries =
        random.normals(batch.positions.size() * static_cast<size_t>(shape.kv_heads * shape.group) *
                           static_cast<size_t>(shape.head_dim),
                       2.0f);
    const auto expected = portable(stores, shape, batch, queries);
    for (const AttentionQueries rows : {AttentionQueries::k8, AttentionQueries::k16}) {
      for (const int32_t ranges : {1, 3}) {
        emulator::set_seed(++seed);
        EXPECT_TRUE(same_bits(run(stores, shape, batch, queries, rows, ranges), expected))
            << "head_dim " << shape.head_dim << " rows " << static_cast<int>(rows);
      }
    }
  }
}

TEST(CudaAttention, RangesAgainstDoubleAndWhateverTheTile) {
  Random random(2);
  const Shape shape{FloatFormat::kBF16, 24, 1, 4};
  Stores stores(random, shape, {2050, 30});
  const auto row = static_cast<size_t>(shape.group * shape.head_dim);
  Batch batch;
  batch.add(0, 1021, 1026);
  batch.add(0, 2046, 2049);
  batch.add(1, 29, 29);
  const auto queries = random.normals(batch.positions.size() * row, 1.5f);
  const auto out = run(stores, shape, batch, queries, AttentionQueries::k16, 3);
  for (size_t t = 0; t < batch.positions.size(); ++t) {
    Batch alone;
    alone.add(batch.sequences[t], batch.positions[t], batch.positions[t]);
    const std::vector<float> query(queries.begin() + static_cast<int64_t>(t * row),
                                   queries.begin() + static_cast<int64_t>((t + 1) * row));
    const std::vector<float> own(out.begin() + static_cast<int64_t>(t * row),
                                 out.begin() + static_cast<int64_t>((t + 1) * row));
    const int32_t ranges = batch.positions[t] / kAttentionRange + 1;
    ASSERT_TRUE(same_bits(run(stores, shape, alone, query, AttentionQueries::k8, ranges), own))
        << "position " << batch.positions[t];
    EXPECT_LE(distance(stores, shape, batch.sequences[t], batch.positions[t], query, own), 1e-5);
  }
}

TEST(CudaAttentionMma, AgainstDoubleAndWhateverTheTile) {
  Random random(3);
  const Shape shapes[] = {{FloatFormat::kBF16, 64, 1, 8},
                          {FloatFormat::kF16, 128, 2, 4},
                          {FloatFormat::kF16, 64, 1, 1},
                          {FloatFormat::kBF16, 128, 1, 16}};
  for (const Shape& shape : shapes) {
    Stores stores(random, shape, {1100, 70, 3});
    const auto row = static_cast<size_t>(shape.kv_heads * shape.group * shape.head_dim);
    Batch batch;
    batch.add(0, 1020, 1030);
    batch.add(1, 60, 69);
    batch.add(2, 0, 2);
    auto queries = random.normals(batch.positions.size() * row, 1.5f);
    for (float& x : queries) {  // the kernel rounds them; the reference is not to be blamed
      x = shape.format == FloatFormat::kF16 ? widen_f16(narrow_f16(x)) : widen_bf16(narrow_bf16(x));
    }
    const auto out = run(stores, shape, batch, queries, MmaRows::k64, 2);
    for (size_t t = 0; t < batch.positions.size(); t += 3) {
      Batch alone;
      alone.add(batch.sequences[t], batch.positions[t], batch.positions[t]);
      const auto at = static_cast<int64_t>(t * row), end = static_cast<int64_t>((t + 1) * row);
      const std::vector<float> query(queries.begin() + at, queries.begin() + end);
      const std::vector<float> own(out.begin() + at, out.begin() + end);
      const int32_t ranges = batch.positions[t] / kAttentionRange + 1;
      ASSERT_TRUE(same_bits(run(stores, shape, alone, query, MmaRows::k16, ranges), own))
          << "position " << batch.positions[t];
      // The exponentials are rounded to 8 or 11 bits.
      EXPECT_LE(distance(stores, shape, batch.sequences[t], batch.positions[t], query, own),
                shape.format == FloatFormat::kF16 ? 5e-4 : 4e-3);
    }
  }
}

TEST(CudaAttention, RefusesWhatItCannotDo) {
  const DeviceArray<AttentionTile> tile(std::vector<AttentionTile>{{0, 0}});
  AttentionArguments a{.kv = {nullptr, nullptr, FloatFormat::kBF16, 2, 64},
                       .heads = 4,
                       .tiles = tile.data(),
                       .tile_count = 1};
  const auto refused = [&](auto change) {
    AttentionArguments changed = a;
    change(changed);
    return !ok(attention(changed, AttentionQueries::k8, nullptr));
  };
  EXPECT_FALSE(refused([](AttentionArguments&) {}));  // a tile of nothing
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.heads = 3; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.kv.head_dim = 60; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.kv.head_dim = 264; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.ranges = 2; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.tile_count = 0; }));
  EXPECT_TRUE(refused([](AttentionArguments& c) { c.window = -1; }));
  AttentionArguments b = a;
  b.heads = 6;  // a group of 3
  EXPECT_EQ(attention_mma(b, MmaRows::k16, nullptr).code, kInvalidArguments);
  b.heads = 4;
  b.kv.head_dim = 96;
  EXPECT_EQ(attention_mma(b, MmaRows::k16, nullptr).code, kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
