// SPDX-License-Identifier: Apache-2.0
// Latent attention: one key a position for all heads, whose first elements are its value.
#include "attention_fixture.h"

namespace vitrine::kernels::testing {
namespace {

struct LatentShape {
  int32_t key_dim, value_dim, heads;
};

/// Scattered blocks of one layer; what was never written is NaN, or -1 with scales that are NaN.
struct LatentStore {
  std::vector<uint8_t> keys;
  std::vector<int32_t> block_table;
  KvView view;
  KvFormat format;

  LatentStore(Random& random, const LatentShape& shape, int32_t positions, int32_t block_size,
              KvFormat kept)
      : format(kept) {
    const int32_t used = (positions + block_size - 1) / block_size;
    const auto size = static_cast<size_t>(used + 3) * static_cast<size_t>(block_size);
    keys.assign(size * static_cast<size_t>(position_bytes(format, shape.key_dim)), 0xff);
    block_table = random.permutation(used + 3);
    block_table.resize(static_cast<size_t>(used));
    view = {keys.data(), nullptr, 1, shape.key_dim, block_size, shape.value_dim};
  }

  void fill(const CpuKernels& table, const std::vector<float>& rows, int32_t positions) {
    for (int32_t p = 0; p < positions; ++p) {
      kernels_of(table, format)
          .write_latent(view, block_table[static_cast<size_t>(p / view.block_size)],
                        p % view.block_size, &rows[static_cast<size_t>(p * view.head_dim)]);
    }
  }
};

std::vector<float> run_latent(const CpuKernels& table, const LatentStore& store,
                              const LatentShape& shape, int32_t position, int32_t tokens,
                              const float* queries) {
  std::vector<float> out(static_cast<size_t>(tokens * shape.heads * shape.value_dim), -7.0f);
  AttentionSpan span;
  span.block_table = store.block_table.data();
  span.position = position;
  span.tokens = tokens;
  span.heads = shape.heads;
  span.scale = 1.0f / std::sqrt(static_cast<float>(shape.key_dim));
  span.query = queries;
  span.query_stride = shape.key_dim;
  span.query_token_stride = int64_t{shape.heads} * shape.key_dim;
  span.out = out.data();
  span.out_stride = shape.value_dim;
  span.out_token_stride = int64_t{shape.heads} * shape.value_dim;
  kernels_of(table, store.format).attend_latent(store.view, span);
  return out;
}

std::vector<double> expected_of(const LatentShape& shape, const std::vector<float>& keys,
                                int32_t position, const float* query) {
  std::vector<double> scores(static_cast<size_t>(position) + 1);
  std::vector<double> out(static_cast<size_t>(shape.value_dim));
  double max = -INFINITY, sum = 0;
  for (int32_t p = 0; p <= position; ++p) {
    double score = 0;
    for (int32_t d = 0; d < shape.key_dim; ++d) {
      score += double{query[d]} * keys[static_cast<size_t>(p * shape.key_dim + d)];
    }
    scores[static_cast<size_t>(p)] = score / std::sqrt(double{1} * shape.key_dim);
    max = std::max(max, scores[static_cast<size_t>(p)]);
  }
  for (double& score : scores) sum += score = std::exp(score - max);
  for (int32_t p = 0; p <= position; ++p) {
    for (int32_t d = 0; d < shape.value_dim; ++d) {
      out[static_cast<size_t>(d)] +=
          scores[static_cast<size_t>(p)] / sum * keys[static_cast<size_t>(p * shape.key_dim + d)];
    }
  }
  return out;
}

constexpr LatentShape kShapes[] = {{48, 32, 4}, {37, 19, 1}, {576, 512, 20}, {70, 64, 33}};

TEST(LatentAttention, IsThatOfDoublePrecision) {
  Random random(31);
  for (const LatentShape& shape : kShapes) {
    for (const KvFormat format : kFormats) {
      const int32_t positions = 131;
      std::vector<float> rows = random.normals(static_cast<size_t>(positions * shape.key_dim));
      const std::vector<float> queries =
          random.normals(static_cast<size_t>(shape.heads * shape.key_dim));
      LatentStore store(random, shape, positions + 1, 48, format);
      store.fill(portable_kernels(), rows, positions);
      if (format == KvFormat::kF16 || format == KvFormat::kBF16) {
        round_to(format, rows.data(), static_cast<int32_t>(rows.size()));
      }
      for (const int32_t position : {0, 1, 62, 63, 64, positions - 1}) {
        const std::vector<float> out =
            run_latent(portable_kernels(), store, shape, position, 1, queries.data());
        for (int32_t head = 0; head < shape.heads; ++head) {
          const std::vector<double> expected = expected_of(
              shape, rows, position, &queries[static_cast<size_t>(head * shape.key_dim)]);
          for (int32_t d = 0; d < shape.value_dim; ++d) {
            ASSERT_NEAR(out[static_cast<size_t>(head * shape.value_dim + d)],
                        expected[static_cast<size_t>(d)], format == KvFormat::kI16 ? 0.02 : 1e-5)
                << "key of " << shape.key_dim << ", position " << position;
          }
        }
      }
    }
  }
}

/// Tables, blocks of other sizes and tokens that come together give the same bits; what lies behind
/// a position is never used.
TEST(LatentAttention, HasTheSameBitsEverywhere) {
  Random random(32);
  for (const LatentShape& shape : kShapes) {
    for (const KvFormat format : kFormats) {
      const int32_t tokens = 5, positions = 129;
      const int32_t first = positions - tokens;
      const std::vector<float> rows =
          random.normals(static_cast<size_t>(positions * shape.key_dim));
      const auto row = static_cast<size_t>(shape.heads * shape.key_dim);
      const std::vector<float> queries = random.normals(static_cast<size_t>(tokens) * row);
      LatentStore whole(random, shape, positions, 64, format);
      whole.fill(portable_kernels(), rows, positions);
      const std::vector<float> expected =
          run_latent(portable_kernels(), whole, shape, first, tokens, queries.data());
      for (const CpuKernels* table : available_tables()) {
        for (const int32_t block_size : {16, 48, 256}) {
          LatentStore store(random, shape, positions, block_size, format);
          for (int32_t t = 0; t < tokens; ++t) {
            store.fill(*table, rows, first + t + 1);
            const std::vector<float> alone = run_latent(*table, store, shape, first + t, 1,
                                                        &queries[static_cast<size_t>(t) * row]);
            const size_t size = alone.size();
            ASSERT_EQ(std::memcmp(alone.data(), &expected[static_cast<size_t>(t) * size],
                                  size * sizeof(float)),
                      0)
                << table->isa << ", key of " << shape.key_dim << ", blocks of " << block_size;
          }
        }
      }
    }
  }
}

/// A NaN or an infinity in a key that is seen makes the result NaN, in every table.
TEST(LatentAttention, ShowsNumbersThatAreNone) {
  Random random(33);
  const LatentShape shape{48, 32, 4};
  for (const KvFormat format : kFormats) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      std::vector<float> rows = random.normals(static_cast<size_t>(70 * shape.key_dim));
      rows[static_cast<size_t>(66 * shape.key_dim + 3)] = bad;
      const std::vector<float> queries =
          random.normals(static_cast<size_t>(shape.heads * shape.key_dim));
      for (const CpuKernels* table : available_tables()) {
        LatentStore store(random, shape, 70, 64, format);
        store.fill(*table, rows, 70);
        for (const float value : run_latent(*table, store, shape, 65, 1, queries.data())) {
          EXPECT_TRUE(std::isfinite(value)) << table->isa;
        }
        if (std::isnan(bad)) {
          for (const float value : run_latent(*table, store, shape, 69, 1, queries.data())) {
            EXPECT_TRUE(std::isnan(value)) << table->isa;
          }
        }
        EXPECT_TRUE(same_bits(run_latent(portable_kernels(), store, shape, 69, 1, queries.data()),
                              run_latent(*table, store, shape, 69, 1, queries.data())))
            << table->isa;
      }
    }
  }
}

TEST(LatentAttention, LargestNumbersFitTheirSums) {
  for (const int32_t n : {1, 128, 129, 256, 257, 512, 576, 640}) {
    const int64_t largest = largest_kv_number(n);
    EXPECT_LE(largest * largest * n, INT32_MAX) << n;
    EXPECT_LE(kAttentionBlock * int64_t{kLargestValueWeight} * largest, INT32_MAX) << n;
  }
  for (int32_t n = 257; n <= kMaxLatentKey; ++n) {  // as large as can be
    const int64_t next = int64_t{largest_kv_number(n)} + 1;
    EXPECT_GT(next * next * n, INT32_MAX) << n;
  }
  EXPECT_EQ(largest_kv_number(512), 2047);
  EXPECT_EQ(largest_kv_number(576), 1930);
}

}  // namespace
}  // namespace vitrine::kernels::testing
