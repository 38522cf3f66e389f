// SPDX-License-Identifier: Apache-2.0
// Paged attention with windows and sinks.
#include "tests/cuda/attention_fixture.h"

namespace vitrine::kernels::cuda::testing {
namespace {

std::vector<float> sinks_of(Random& random, const Shape& shape) {
  std::vector<float> sinks = random.normals(static_cast<size_t>(shape.kv_heads * shape.group));
  for (float& sink : sinks) sink += 3.0f;
  return sinks;
}

size_t row_width(const Shape& shape) {
  return static_cast<size_t>(shape.kv_heads * shape.group * shape.head_dim);
}

/// Nothing is left of what no token of the batch sees; `by_block`: of blocks of which none sees
/// any.
void forget_unseen(Stores& stores, const Batch& batch, const View& view, bool by_block = false) {
  for (size_t t = 0; t < batch.positions.size(); ++t) {
    const bool is_first = t == 0 || batch.sequences[t] != batch.sequences[t - 1];
    const int32_t first = view.first_seen(batch.positions[t]);
    if (is_first) stores.forget(batch.sequences[t], by_block ? first / kKvBlock * kKvBlock : first);
  }
}

TEST(CudaAttentionWindow, HasThePortableBits) {
  Random random(31);
  const Shape shapes[] = {{FloatFormat::kF32, 12, 2, 3},
                          {FloatFormat::kBF16, 64, 1, 8},
                          {FloatFormat::kF16, 136, 1, 20}};
  uint64_t seed = 0;
  for (const Shape& shape : shapes) {
    for (const int32_t window : {0, 1, 15, 63, 64, 65, 100, 1000}) {
      for (const bool has_sinks : {false, true}) {
        View view{window};
        if (has_sinks) view.sinks = sinks_of(random, shape);
        Stores stores(random, shape, {150, 71, 3, 230});
        Batch batch;
        batch.add(0, 149, 149);  // decode
        batch.add(1, 58, 70);    // a chunk across a block's end
        batch.add(2, 0, 2);      // a whole prompt
        batch.add(3, 190, 229);  // a chunk longer than some windows
        forget_unseen(stores, batch, view);
        const auto queries = random.normals(batch.positions.size() * row_width(shape), 2.0f);
        const auto expected = portable(stores, shape, batch, queries, view);
        for (const float x : expected) ASSERT_TRUE(std::isfinite(x));
        for (const AttentionQueries rows : {AttentionQueries::k8, AttentionQueries::k16}) {
          emulator::set_seed(++seed);
          const int32_t ranges = seed % 2 == 0 ? 1 : 3;
          EXPECT_TRUE(same_bits(run(stores, shape, batch, queries, rows, ranges, view), expected))
              << "head_dim " << shape.head_dim << " window " << window << " sinks " << has_sinks;
        }
      }
    }
  }
}

/// Tokens of a batch that sees some ranges in part and some not at all: against double, and each
/// alone.
template <typename RowsOfBlock>
void expect_ranges(Random& random, const Shape& shape, int32_t window, RowsOfBlock many,
                   RowsOfBlock one, double most) {
  const View view{window, sinks_of(random, shape)};
  Stores stores(random, shape, {1031, 2300, 70});
  Batch batch;
  batch.add(0, 1020, 1030);
  batch.add(1, 2290, 2299);
  batch.add(2, 60, 69);
  // On tensor cores a weight of 0 meets what a block holds before a window.
  forget_unseen(stores, batch, view, std::is_same_v<RowsOfBlock, MmaRows>);
  const size_t row = row_width(shape);
  auto queries = random.normals(batch.positions.size() * row, 1.5f);
  for (float& x : queries) x = widen_bf16(narrow_bf16(x));  // which some kernels round
  const auto out = run(stores, shape, batch, queries, many, 3, view);
  for (size_t t = 0; t < batch.positions.size(); t += 3) {
    const int32_t sequence = batch.sequences[t], position = batch.positions[t];
    Batch alone;
    alone.add(sequence, position, position);
    const auto at = static_cast<int64_t>(t * row), end = static_cast<int64_t>((t + 1) * row);
    const std::vector<float> query(queries.begin() + at, queries.begin() + end);
    const std::vector<float> own(out.begin() + at, out.begin() + end);
    const int32_t ranges = position / kAttentionRange + 1;
    ASSERT_TRUE(same_bits(run(stores, shape, alone, query, one, ranges, view), own))
        << "position " << position << " window " << window;
    EXPECT_LE(distance(stores, shape, sequence, position, query, own, view), most)
        << "position " << position << " window " << window;
  }
}

// In the last range alone, in the last two, in all; and the whole of a range.
TEST(CudaAttentionWindow, RangesAgainstDoubleAndWhateverTheTile) {
  Random random(32);
  const Shape shape{FloatFormat::kBF16, 24, 1, 4};
  for (const int32_t window : {0, 100, 300, 1024, 1500, 5000}) {
    expect_ranges(random, shape, window, AttentionQueries::k16, AttentionQueries::k8, 1e-5);
  }
}

TEST(CudaAttentionWindow, OnTensorCoresAgainstDoubleAndWhateverTheTile) {
  Random random(33);
  // The exponentials are rounded to 8 bits.
  for (const int32_t window : {0, 128, 300, 1500}) {
    const Shape shape{FloatFormat::kBF16, 64, 1, 8};
    expect_ranges(random, shape, window, MmaRows::k64, MmaRows::k16, 4e-3);
  }
}

// With a sink that outweighs all else what is left is next to nothing.
TEST(CudaAttentionWindow, ASinkTakesItsShare) {
  Random random(34);
  const Shape shape{FloatFormat::kF32, 16, 1, 2};
  Stores stores(random, shape, {40});
  Batch batch;
  batch.add(0, 39, 39);
  const auto queries = random.normals(row_width(shape));
  const auto out =
      run(stores, shape, batch, queries, AttentionQueries::k8, 1, View{8, {-INFINITY, 40.0f}});
  const auto without = run(stores, shape, batch, queries, AttentionQueries::k8, 1, View{8});
  for (size_t d = 0; d < 16; ++d) {
    EXPECT_TRUE(same_bits(out[d], without[d])) << "a sink of minus infinity";
    EXPECT_LE(std::fabs(out[16 + d]), 1e-12f);
  }
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
