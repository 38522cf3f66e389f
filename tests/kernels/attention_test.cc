// SPDX-License-Identifier: Apache-2.0
// Block attention: against double precision, whatever the storage and the garbage around it.
#include "attention_fixture.h"

namespace vitrine::kernels::testing {
namespace {

TEST(Attention, AgainstDouble) {
  Random random(1);
  for (const int32_t head_dim : {1, 2, 6, 7, 16, 30, 64, 80, 127, 128, 129, 130, 256}) {
    for (const int32_t position : {0, 1, 14, 15, 16, 63, 64, 65, 200, 383}) {
      const int32_t num_queries = random.integer(1, 9);
      const KvFormat format = kFormats[random.integer(0, 3)];
      const Sequence sequence = Sequence(random, position + 1, head_dim).rounded(format);
      const auto queries = random.normals(static_cast<size_t>(num_queries) * head_dim, 2.0f);
      Store store(random, position + 1, 2, head_dim, 32, format);
      sequence.fill(&store, portable_kernels(), 1);
      const double scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
      double value_max = 0;
      double key_norm = 0;
      // What the rounding of the query's elements and of the values' weights adds: errors of a unit
      // over the square root of 12, independent, times five.
      const auto integer_error = [&](const float* query, double scaled_norm, int32_t position) {
        double largest = 0;
        for (int32_t d = 0; d < head_dim; ++d)
          largest = std::max<double>(largest, std::fabs(query[d]));
        const double score_error = largest / (head_dim <= 128 ? 4095 : 2895) * scaled_norm;
        const double weight_error = std::sqrt(position + 1.0) / 8191;
        return 5 / std::sqrt(12.0) * (2 * score_error + weight_error) * value_max;
      };
      for (const float v : sequence.values) value_max = std::max<double>(value_max, std::fabs(v));
      for (int32_t p = 0; p <= position; ++p) {
        key_norm =
            std::max(key_norm, norm(&sequence.keys[static_cast<size_t>(p) * head_dim], head_dim));
      }
      for (const CpuKernels* table : available_tables()) {
        const std::vector<float> out = run(*table, store, position, 1, queries, num_queries);
        for (int32_t q = 0; q < num_queries; ++q) {
          const float* query = &queries[static_cast<size_t>(q) * head_dim];
          const std::vector<double> expected = reference(sequence, position, query, scale);
          // A score is wrong by at most head_dim roundings of |q||k|; that moves every weight by as
          // much relatively, twice (numerator and sum); the sums themselves round per position.
          const double score_error =
              (head_dim + 2) * kEpsilon * norm(query, head_dim) * key_norm * scale;
          double bound = (2 * score_error + (2.0 * position + 16) * kEpsilon) * value_max;
          if (format == KvFormat::kI16) bound += integer_error(query, key_norm * scale, position);
          for (int32_t d = 0; d < head_dim; ++d) {
            ASSERT_NEAR(out[static_cast<size_t>(q) * head_dim + d], expected[d], bound)
                << table->isa << " head_dim " << head_dim << " position " << position;
          }
        }
      }
    }
  }
}

/// Any block size, any table, any number of queries at once, with NaN beyond the position: one
/// result.
TEST(Attention, SameBitsWhateverTheStorage) {
  Random random(2);
  for (const auto& [head_dim, format] : {std::pair{10, KvFormat::kF32},
                                         {64, KvFormat::kF32},
                                         {72, KvFormat::kF32},
                                         {64, KvFormat::kF16},
                                         {10, KvFormat::kBF16},
                                         {72, KvFormat::kBF16},
                                         {7, KvFormat::kI16},
                                         {64, KvFormat::kI16},
                                         {90, KvFormat::kI16},
                                         {255, KvFormat::kI16}}) {
    const int32_t positions = 300;
    const Sequence sequence(random, positions, head_dim);
    const auto queries = random.normals(static_cast<size_t>(7) * head_dim, 2.0f);
    std::vector<float> first[4];
    const int32_t checked[] = {0, 37, 130, 299};
    for (const CpuKernels* table : available_tables()) {
      for (const int32_t block_size : {16, 32, 48, 64, 128, 256}) {
        Store store(random, positions, 3, head_dim, block_size, format);
        int32_t written = 0;
        for (int i = 0; i < 4; ++i) {
          for (; written <= checked[i]; ++written) {  // NaN from here on
            const size_t at = static_cast<size_t>(written) * head_dim;
            store.write(*table, written, 2, &sequence.keys[at], &sequence.values[at]);
          }
          const std::vector<float> out = run(*table, store, checked[i], 2, queries, 7);
          for (const float value : out) ASSERT_TRUE(std::isfinite(value));
          if (first[i].empty()) first[i] = out;
          ASSERT_TRUE(same_bits(first[i], out))
              << table->isa << " block size " << block_size << " position " << checked[i];
          for (int q = 0; q < 7; ++q) {  // each query alone
            const std::vector<float> alone(queries.begin() + q * head_dim,
                                           queries.begin() + (q + 1) * head_dim);
            const std::vector<float> one = run(*table, store, checked[i], 2, alone, 1);
            ASSERT_EQ(memcmp(one.data(), &out[static_cast<size_t>(q) * head_dim],
                             sizeof(float) * head_dim),
                      0);
          }
        }
      }
    }
  }
}

/// Tokens in one tile, of any length and from any position, have the bits of each alone, and see
/// nothing behind themselves.
TEST(Attention, TilesHaveTheBitsOfTheirTokens) {
  Random random(11);
  for (const auto& [head_dim, format] : {std::pair{10, KvFormat::kF32},
                                         {72, KvFormat::kF32},
                                         {64, KvFormat::kF16},
                                         {136, KvFormat::kBF16},
                                         {9, KvFormat::kI16},
                                         {80, KvFormat::kI16},
                                         {128, KvFormat::kI16},
                                         {250, KvFormat::kI16}}) {
    const int32_t positions = 333;
    const Sequence sequence(random, positions, head_dim);
    for (const CpuKernels* table : available_tables()) {
      Store store(random, positions, 2, head_dim, 48, format);
      int32_t written = 0;
      for (const auto& [first, tokens, heads] : {std::tuple{0, 1, 5},
                                                 {0, 7, 3},
                                                 {1, 33, 1},
                                                 {34, 40, 3},
                                                 {74, 2, 4},
                                                 {100, 29, 1},
                                                 {127, 3, 2},
                                                 {130, 5, 40},
                                                 {190, 13, 8},
                                                 {255, 66, 5},
                                                 {321, 12, 3}}) {
        for (; written < first + tokens; ++written) {  // NaN from here on
          const size_t at = static_cast<size_t>(written) * head_dim;
          store.write(*table, written, 1, &sequence.keys[at], &sequence.values[at]);
        }
        const size_t row = static_cast<size_t>(heads) * head_dim;
        const auto queries = random.normals(tokens * row, 2.0f);
        const std::vector<float> out = run_tile(*table, store, first, 1, queries, tokens);
        for (int32_t t = 0; t < tokens; ++t) {
          const std::vector<float> alone(queries.begin() + t * row,
                                         queries.begin() + (t + 1) * row);
          const std::vector<float> one = run(portable_kernels(), store, first + t, 1, alone, heads);
          ASSERT_TRUE(std::isfinite(one[0]));
          ASSERT_EQ(memcmp(one.data(), &out[t * row], sizeof(float) * row), 0)
              << table->isa << " head_dim " << head_dim << ", token " << t << " of " << tokens
              << " from " << first << ", " << heads << " heads";
        }
      }
    }
  }
}

/// 16 bits are the same as values that were rounded before: to the nearest, and widened exactly.
TEST(Attention, RoundsAsItWrites) {
  Random random(9);
  for (const KvFormat format : {KvFormat::kF32, KvFormat::kF16, KvFormat::kBF16}) {
    const Sequence sequence(random, 90, 24);
    const auto queries = random.normals(24, 2.0f);
    for (const CpuKernels* table : available_tables()) {
      Store store(random, 90, 1, 24, 32, format), wide(random, 90, 1, 24, 16);
      sequence.fill(&store, *table, 0);
      sequence.rounded(format).fill(&wide, *table, 0);
      EXPECT_TRUE(
          same_bits(run(*table, wide, 89, 0, queries, 1), run(*table, store, 89, 0, queries, 1)))
          << table->isa;
    }
  }
}

TEST(Attention, OnePositionGivesItsValue) {
  Random random(3);
  const Sequence sequence(random, 1, 20);
  for (const CpuKernels* table : available_tables()) {
    Store store(random, 1, 1, 20, 16);
    sequence.fill(&store, *table, 0);
    const std::vector<float> out = run(*table, store, 0, 0, random.normals(40), 2);
    for (int i = 0; i < 40; ++i) EXPECT_EQ(out[i], sequence.values[i % 20]);
  }
}

/// Large scores neither overflow nor lose the largest; a NaN key is not hidden.
TEST(Attention, ExtremeScores) {
  Random random(4);
  Sequence sequence(random, 150, 8);
  for (float& key : sequence.keys) key *= 1e4f;
  const auto queries = random.normals(8, 1e4f);
  std::vector<float> results[2];
  for (const CpuKernels* table : available_tables()) {
    Store store(random, 150, 1, 8, 16);
    sequence.fill(&store, *table, 0);
    results[table != &portable_kernels()] = run(*table, store, 149, 0, queries, 1);
    for (const float value : run(*table, store, 149, 0, queries, 1)) {
      EXPECT_TRUE(std::isfinite(value)) << table->isa;
    }
    const std::vector<float> nan_key(8, NAN), value(8, 1.0f);
    store.write(*table, 100, 0, nan_key.data(), value.data());
    for (const float v : run(*table, store, 149, 0, queries, 1)) EXPECT_TRUE(std::isnan(v));
    for (const float v : run(*table, store, 99, 0, queries, 1)) EXPECT_TRUE(std::isfinite(v));
  }
  if (!results[1].empty()) {
    EXPECT_TRUE(same_bits(results[0], results[1]));
  }
}

TEST(KvWrite, PutsOnePositionIntoItsPlaces) {
  Random random(5);
  for (const CpuKernels* table : available_tables()) {
    Store store(random, 64, 2, 6, 32);
    const std::vector<float> key = random.normals(6), value = random.normals(6);
    kernels_of(*table, store.format).write(store.view, 3, 17, 1, key.data(), value.data());
    const auto elements = [](const std::vector<uint8_t>& bytes) {
      std::vector<float> result(bytes.size() / sizeof(float));
      memcpy(result.data(), bytes.data(), bytes.size());
      return result;
    };
    const std::vector<float> keys = elements(store.keys), values = elements(store.values);
    size_t written = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      written += !std::isnan(keys[i]) + !std::isnan(values[i]);
    }
    EXPECT_EQ(written, 12u);
    const size_t base = (3 * 2 + 1) * 6 * 32;
    for (int d = 0; d < 6; ++d) {
      EXPECT_EQ(keys[base + d * 32 + 17], key[d]);
      EXPECT_EQ(values[base + 17 * 6 + d], value[d]);
    }
  }
}

/// Every number of a row, and what stays of the other position of its pair.
TEST(KvWrite, PutsIntegersAndTheirScale) {
  Random random(6);
  for (const int32_t head_dim : {1, 6, 7, 64, 127, 129, 256}) {
    const int32_t largest = head_dim <= 128 ? 4095 : 2895;
    for (const CpuKernels* table : available_tables()) {
      Store store(random, 64, 2, head_dim, 32, KvFormat::kI16);
      const std::vector<uint8_t> keys_before = store.keys, values_before = store.values;
      const std::vector<float> key = random.normals(head_dim), value = random.normals(head_dim);
      kernels_of(*table, store.format).write(store.view, 3, 21, 1, key.data(), value.data());
      const int32_t padded = (head_dim + 1) / 2 * 2;
      const size_t base = static_cast<size_t>((3 * 2 + 1) * 32 + 16) * (padded * 2 + 4);
      const auto expect = [&](const std::vector<float>& row, const std::vector<uint8_t>& before,
                              const std::vector<uint8_t>& after, const auto& place) {
        std::vector<uint8_t> expected = before;
        float magnitude = 0;
        for (const float x : row) magnitude = std::max(magnitude, std::fabs(x));
        const float scale = magnitude / static_cast<float>(largest);
        memcpy(&expected[base + padded * 32 + 5 * 4], &scale, 4);
        for (int32_t d = 0; d < padded; ++d) {
          if (place(d) < 0) continue;
          const float x = d < head_dim ? row[d] : 0;
          const float factor = static_cast<float>(largest) / magnitude;
          const auto number = static_cast<int16_t>(std::nearbyint(x * factor));
          memcpy(&expected[base + 2 * place(d)], &number, 2);
        }
        EXPECT_EQ(expected, after) << table->isa << " head_dim " << head_dim;
      };
      expect(key, keys_before, store.keys, [&](int32_t d) { return (d / 2 * 16 + 5) * 2 + d % 2; });
      expect(value, values_before, store.values,
             [&](int32_t d) { return d < head_dim ? (2 * head_dim + d) * 2 + 1 : -1; });
    }
  }
}

/// The largest numbers there are, of equal sign: no sum of them overflows.
TEST(Attention, SumsOfTheLargestIntegersFit) {
  for (const int32_t head_dim : {1, 64, 128, 129, 256}) {
    for (const CpuKernels* table : available_tables()) {
      Random random(7);
      Store store(random, 64, 1, head_dim, 64, KvFormat::kI16);
      const std::vector<float> row(head_dim, -3.0f);
      for (int32_t p = 0; p < 64; ++p) store.write(*table, p, 0, row.data(), row.data());
      const std::vector<float> out = run(*table, store, 63, 0, row, 1);
      for (const float v : out) ASSERT_NEAR(v, -3.0, 1e-6) << table->isa << " of " << head_dim;
      // Scores that wrapped would find the keys of the other sign.
      const std::vector<float> other(head_dim, 3.0f), five(head_dim, 5.0f);
      for (int32_t p = 0; p < 64; p += 2) store.write(*table, p, 0, other.data(), five.data());
      for (const float v : run(*table, store, 63, 0, row, 1)) {
        ASSERT_NEAR(v, -3.0, 1e-6) << table->isa << " of " << head_dim;
      }
    }
  }
}

/// What is not finite makes NaN of the queries that see it, and of no others; what is 0 or nearly
/// stays so. Every table finds the same bits.
TEST(Attention, IntegersOfNoFiniteRow) {
  Random random(8);
  const int32_t n = 20;
  const Sequence sequence(random, 100, n);
  const std::vector<float> queries = random.normals(n);
  const auto all = [](const std::vector<float>& out, const auto& holds) {
    return std::all_of(out.begin(), out.end(), [&](float v) { return holds(v); });
  };
  const auto is_nan = [](float v) { return std::isnan(v); };
  const auto is_finite = [](float v) { return std::isfinite(v); };
  std::vector<float> first, found;
  for (const CpuKernels* table : available_tables()) {
    found.clear();
    const auto keep = [&](const std::vector<float>& out) {
      for (const float v : out) found.push_back(std::isnan(v) ? NAN : v);
      return out;
    };
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const bool in_key : {true, false}) {
        Store store(random, 100, 1, n, 32, KvFormat::kI16);
        sequence.fill(&store, *table, 0);
        std::vector<float> key = random.normals(n), value = random.normals(n);
        (in_key ? key : value)[13] = bad;
        store.write(*table, 70, 0, key.data(), value.data());
        EXPECT_TRUE(all(run(*table, store, 69, 0, queries, 1), is_finite)) << table->isa;
        EXPECT_TRUE(all(run(*table, store, 70, 0, queries, 1), is_nan)) << table->isa << bad;
        EXPECT_TRUE(all(run(*table, store, 99, 0, queries, 1), is_nan)) << table->isa << bad;
      }
      Store store(random, 100, 1, n, 32, KvFormat::kI16);
      sequence.fill(&store, *table, 0);
      std::vector<float> query = queries;
      query[3] = bad;
      EXPECT_TRUE(all(run(*table, store, 99, 0, query, 1), is_nan)) << table->isa << bad;
    }
    // A factor overflows for rows up to 1.2e-35, and for weights of values up to 1e-31.
    for (const float size :
         {0.0f, 1e-45f, 1e-38f, 6e-36f, 1.2e-35f, 3e-35f, 5e-32f, 1e-31f, 1e-30f, 1e36f}) {
      Store store(random, 100, 1, n, 32, KvFormat::kI16);
      std::vector<float> row = sequence.values;
      for (float& v : row) v *= size;
      for (int32_t p = 0; p < 100; ++p) {
        store.write(*table, p, 0, &sequence.keys[p * n], &row[p * n]);
      }
      const std::vector<float> out = keep(run(*table, store, 99, 0, queries, 1));
      EXPECT_TRUE(all(out, is_finite)) << size;
      const bool is_nothing = all(out, [](float v) { return v == 0; });
      EXPECT_TRUE(size > 1e-34f || is_nothing) << size;
      EXPECT_FALSE(size > 1e-31f && is_nothing) << size;
      for (int32_t p = 0; p < 100; ++p) {
        store.write(*table, p, 0, &row[p * n], &sequence.values[p * n]);
      }
      EXPECT_TRUE(all(keep(run(*table, store, 99, 0, queries, 1)), is_finite)) << size;
    }
    if (first.empty()) first = found;
    EXPECT_TRUE(same_bits(first, found)) << table->isa;
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
