// SPDX-License-Identifier: Apache-2.0
// Attention over tiles: every table gives the bits of docs/numerics.md's orders, which stand here
// once more in plain C++.
#include "kernel_test_util.h"
#include "kernels/cpu/portable/math.h"

namespace vitrine::kernels::testing {
namespace {

using portable::exp_float, portable::Lanes;

constexpr int32_t kPositions = 64;

/// A sequence of one kv head whose blocks hold a tile's numbers for each 64 positions, the same
/// ones open and closed.
struct TileStore {
  struct Numbers {
    std::vector<float> keys, values;              // [n][64], [64][row]
    std::vector<int16_t> wide_keys, wide_values;  // [(n + 1) / 2][64][2], [32][row][2]
    std::vector<int8_t> byte_keys, byte_values;   // the same
    std::vector<float> key_scales, value_scales;  // as the form has them
  };

  TileStore(Random& random, int32_t head_dim, int32_t num_tiles, const TileForm& tile_form)
      : n(head_dim), row(tile_row(head_dim)), form(tile_form), tiles(num_tiles) {
    for (Numbers& tile : tiles) fill(random, tile);
    codec.codec = this;
    codec.head_dim = n;
    codec.open_bytes = 64;
    codec.open = codec.closed = codec.fine = form;
    codec.decode = decode;
    planes.resize(static_cast<size_t>(64 * (num_tiles + 1)));
    for (int32_t i = 0; i < num_tiles; ++i) {
      planes[static_cast<size_t>(64 * i)] = static_cast<std::byte>(i);
      table.push_back(i);
    }
    view = {planes.data(), planes.data(), 1, n, kPositions};
    view.tiles = &codec;
  }

  static int scales_of(int32_t group, int32_t n) {
    return group == 0 ? tile_row(n) : (n + group - 1) / group * kPositions;
  }

  void fill(Random& random, Numbers& tile) const {
    const int32_t most = largest_kv_number(n);
    const int32_t pairs = (n + 1) / 2;
    tile.keys = random.normals(static_cast<size_t>(n) * kPositions);
    tile.values = random.normals(static_cast<size_t>(row) * kPositions);
    for (int32_t i = 0; i < pairs * kPositions * 2; ++i) {
      tile.wide_keys.push_back(static_cast<int16_t>(random.integer(-most, most)));
      tile.byte_keys.push_back(static_cast<int8_t>(random.integer(-127, 127)));
    }
    for (int32_t i = 0; i < row * kPositions; ++i) {
      tile.wide_values.push_back(static_cast<int16_t>(random.integer(-most, most)));
      tile.byte_values.push_back(static_cast<int8_t>(random.integer(-127, 127)));
    }
    const bool is_wide = form.kind == TileKind::kInt16;
    const auto scales = [&](int32_t group, float mean) {
      std::vector<float> all =
          random.normals(static_cast<size_t>(is_wide ? kPositions : scales_of(group, n)), mean);
      for (float& scale : all) scale = std::fabs(scale);
      return all;
    };
    tile.key_scales = scales(form.key_group, is_wide ? 1e-3f : 1e-2f);
    tile.value_scales = scales(form.value_group, is_wide ? 1e-3f : 1e-2f);
  }

  static void decode(const TileCodec& codec, const TileSource& source, const TileRoom&,
                     Tile& tile) {
    const auto& store = *static_cast<const TileStore*>(codec.codec);
    const std::byte* block = source.open != nullptr ? source.open : source.closed;
    const Numbers& own = store.tiles[static_cast<size_t>(*block)];
    const TileKind kind = store.form.kind;
    tile.keys = kind == TileKind::kFloat   ? static_cast<const void*>(own.keys.data())
                : kind == TileKind::kInt16 ? static_cast<const void*>(own.wide_keys.data())
                                           : own.byte_keys.data();
    tile.values = kind == TileKind::kFloat   ? static_cast<const void*>(own.values.data())
                  : kind == TileKind::kInt16 ? static_cast<const void*>(own.wide_values.data())
                                             : own.byte_values.data();
    tile.key_scales = own.key_scales.data();
    tile.value_scales = own.value_scales.data();
  }

  int32_t n, row;
  TileForm form;
  std::vector<Numbers> tiles;
  TileCodec codec;
  std::vector<std::byte> planes;
  std::vector<int32_t> table;
  KvView view;
};

struct Rounded {
  std::vector<int32_t> numbers;
  float scale;
};

/// A query's integers, and those of a query that has taken scales in.
Rounded round_query(const std::vector<float>& query) {
  const auto n = static_cast<int32_t>(query.size());
  const auto limit = static_cast<float>(largest_kv_number(n));
  float largest = 0;
  for (const float x : query) largest = std::max(largest, std::fabs(x));
  Rounded rounded{std::vector<int32_t>(query.size()), 0};
  const float factor = limit / largest;
  if (!std::isfinite(factor)) return rounded;
  rounded.scale = largest / limit;
  for (size_t i = 0; i < query.size(); ++i) {
    rounded.numbers[i] = static_cast<int32_t>(std::nearbyint(query[i] * factor));
  }
  return rounded;
}

/// One query by the page's steps.
std::vector<float> by_the_page(const TileStore& store, const AttentionSpan& span, int32_t position,
                               const float* query, float sink) {
  const int32_t n = store.n, row = store.row;
  const TileForm& form = store.form;
  const bool is_wide = form.kind == TileKind::kInt16, is_byte = form.kind == TileKind::kInt8;
  const std::vector<float> own(query, query + n);
  const Rounded rounded = round_query(own);
  float max = sink, total = sink == -INFINITY ? 0.0f : 1.0f;
  std::vector<float> out(static_cast<size_t>(n), 0.0f);
  const int32_t first = span.window == 0 ? 0 : std::max(0, position - span.window + 1);
  for (int32_t start = first / kPositions * kPositions; start <= position; start += kPositions) {
    const TileStore::Numbers& tile = store.tiles[static_cast<size_t>(start / kPositions)];
    const int32_t begin = std::max(first - start, 0);
    const int32_t end = std::min(position + 1 - start, kPositions);
    const auto key = [&](int32_t j, int32_t d) {
      const size_t at = static_cast<size_t>((d / 2 * kPositions + j) * 2 + d % 2);
      return is_wide ? int32_t{tile.wide_keys[at]} : int32_t{tile.byte_keys[at]};
    };
    const auto value = [&](int32_t j, int32_t d) {
      const size_t at = static_cast<size_t>((j / 2 * row + d) * 2 + j % 2);
      return is_wide ? int32_t{tile.wide_values[at]} : int32_t{tile.byte_values[at]};
    };
    float score[kPositions], new_max = max;
    for (int32_t j = begin; j < end; ++j) {
      float acc = 0;
      if (!is_wide && !is_byte) {
        for (int32_t d = 0; d < n; ++d) {
          acc = std::fma(own[static_cast<size_t>(d)],
                         tile.keys[static_cast<size_t>(d * kPositions + j)], acc);
        }
        score[j] = acc * span.scale;
      } else if (is_wide) {
        int32_t dot = 0;
        for (int32_t d = 0; d < n; ++d) dot += rounded.numbers[static_cast<size_t>(d)] * key(j, d);
        score[j] = static_cast<float>(dot) *
                   (tile.key_scales[static_cast<size_t>(j)] * (rounded.scale * span.scale));
      } else if (form.key_group > 0) {
        for (int32_t g = 0; g * form.key_group < n; ++g) {
          int32_t dot = 0;
          for (int32_t d = g * form.key_group; d < std::min(n, (g + 1) * form.key_group); ++d) {
            dot += rounded.numbers[static_cast<size_t>(d)] * key(j, d);
          }
          acc = std::fma(static_cast<float>(dot),
                         tile.key_scales[static_cast<size_t>(g * kPositions + j)], acc);
        }
        score[j] = acc * (rounded.scale * span.scale);
      } else {
        std::vector<float> folded = own;
        for (size_t d = 0; d < folded.size(); ++d) folded[d] = folded[d] * tile.key_scales[d];
        const Rounded numbers = round_query(folded);
        int32_t dot = 0;
        for (int32_t d = 0; d < n; ++d) dot += numbers.numbers[static_cast<size_t>(d)] * key(j, d);
        score[j] = static_cast<float>(dot) * (numbers.scale * span.scale);
      }
      new_max = std::max(new_max, score[j]);
    }
    const float correction = exp_float(max - new_max);
    Lanes sum;
    float e[kPositions] = {};
    for (int32_t j = begin; j < end; ++j) {
      e[j] = exp_float(score[j] - new_max);
      sum.add_at(j, e[j]);
    }
    total = total * correction + sum.sum();
    max = new_max;
    const int32_t group = is_byte && form.value_group > 0 ? form.value_group : n;
    const bool by_channel = is_byte && form.value_group == 0;
    for (int32_t g = 0; g * group < n; ++g) {
      float weights[kPositions] = {}, largest = 0;
      for (int32_t j = begin; j < end && (is_wide || is_byte); ++j) {
        const float scale =
            by_channel ? 1.0f : tile.value_scales[static_cast<size_t>(g * kPositions + j)];
        weights[j] = e[j] * scale;
        largest = std::max(largest, weights[j]);
      }
      const float factor = 8191.0f / largest, unit = largest / 8191.0f;
      for (int32_t d = g * group; d < std::min(n, (g + 1) * group); ++d) {
        float& to = out[static_cast<size_t>(d)];
        to = to * correction;
        if (!is_wide && !is_byte) {
          for (int32_t j = begin; j < end; ++j) {
            to = std::fma(e[j], tile.values[static_cast<size_t>(j * row + d)], to);
          }
          continue;
        }
        int32_t dot = 0;
        for (int32_t j = begin; j < end; ++j) {
          dot += static_cast<int32_t>(std::nearbyint(weights[j] * factor)) * value(j, d);
        }
        const float scale = by_channel ? unit * tile.value_scales[static_cast<size_t>(d)] : unit;
        to = std::fma(static_cast<float>(dot), scale, to);
      }
    }
  }
  for (float& x : out) x = x / total;
  return out;
}

void expect_the_page(const TileForm& form, int32_t n, int32_t window, bool has_sinks) {
  Random random(static_cast<uint32_t>(7 + n + window));
  constexpr int32_t kTiles = 4;
  for (const auto& [position, tokens, heads] :
       {std::array{0, 1, 1}, {63, 1, 3}, {64, 1, 1}, {100, 9, 4}, {130, 40, 1}, {200, 1, 40}}) {
    const TileStore store(random, n, kTiles, form);
    const std::vector<float> queries =
        random.normals(static_cast<size_t>(tokens) * static_cast<size_t>(heads * n));
    const std::vector<float> sinks = random.normals(static_cast<size_t>(heads));
    AttentionSpan span;
    span.block_table = span.open_table = store.table.data();
    span.position = position;
    span.tokens = tokens;
    span.heads = heads;
    span.scale = 0.3f;
    span.window = window;
    span.sinks = has_sinks ? sinks.data() : nullptr;
    span.query = queries.data();
    span.query_stride = span.out_stride = n;
    span.query_token_stride = span.out_token_stride = int64_t{heads} * n;
    std::vector<float> expected;
    for (int32_t i = 0; i < tokens * heads; ++i) {
      const float sink = has_sinks ? sinks[static_cast<size_t>(i % heads)] : -INFINITY;
      const std::vector<float> one = by_the_page(store, span, position + i / heads,
                                                 &queries[static_cast<size_t>(i * n)], sink);
      expected.insert(expected.end(), one.begin(), one.end());
    }
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out(queries.size(), NAN);
      span.out = out.data();
      table->attend_tiles(store.view, span);
      EXPECT_TRUE(same_bits(expected, out))
          << table->isa << ", " << n << " elements, position " << position << ", window " << window;
    }
  }
}

TEST(Tiles, HaveTheBitsOfThePageInEveryForm) {
  for (const TileForm& form : {TileForm{TileKind::kFloat},
                               {TileKind::kInt16},
                               {TileKind::kInt8, 32, 32},
                               {TileKind::kInt8, 16, 32},
                               {TileKind::kInt8, 32, 16},
                               {TileKind::kInt8, 0, 0},
                               {TileKind::kInt8, 0, 32},
                               {TileKind::kInt8, 16, 0}}) {
    SCOPED_TRACE(static_cast<int>(form.kind));
    for (const int32_t n : {16, 33, 80, 128, 512}) {
      expect_the_page(form, n, 0, false);
      if (n == 33 || n == 128) expect_the_page(form, n, 90, true);
    }
  }
}

// i16's own kernel and the walk over int16 tiles of its numbers.
TEST(Tiles, OfInt16HaveTheBitsOfItsOwnKernel) {
  Random random(3);
  constexpr int32_t n = 96;
  TileStore store(random, n, 3, {TileKind::kInt16});
  std::vector<uint8_t> keys(static_cast<size_t>(3 * kPositions * int16_kv_bytes(n)));
  std::vector<uint8_t> values = keys;
  const KvView own{keys.data(), values.data(), 1, n, kPositions};
  const KvKernels& kernels = *find_kv_kernels(portable_kernels(), "i16");
  for (int32_t p = 0; p < 3 * kPositions; ++p) {
    const std::vector<float> key = random.normals(n), value = random.normals(n);
    kernels.write(own, p / kPositions, p % kPositions, 0, key.data(), value.data());
    TileStore::Numbers& tile = store.tiles[static_cast<size_t>(p / kPositions)];
    const int32_t j = p % kPositions;
    const Rounded of_key = round_query(key), of_value = round_query(value);
    tile.key_scales[static_cast<size_t>(j)] = of_key.scale;
    tile.value_scales[static_cast<size_t>(j)] = of_value.scale;
    for (int32_t d = 0; d < n; ++d) {
      const auto at = static_cast<size_t>(d);
      tile.wide_keys[static_cast<size_t>((d / 2 * kPositions + j) * 2 + d % 2)] =
          static_cast<int16_t>(of_key.numbers[at]);
      tile.wide_values[static_cast<size_t>((j / 2 * store.row + d) * 2 + j % 2)] =
          static_cast<int16_t>(of_value.numbers[at]);
    }
  }
  const std::vector<float> query = random.normals(2 * n);
  for (const int32_t position : {0, 17, 63, 64, 150}) {
    AttentionSpan span;
    span.block_table = span.open_table = store.table.data();
    span.position = position;
    span.heads = 2;
    span.scale = 0.1f;
    span.query = query.data();
    span.query_stride = span.out_stride = n;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> expected(query.size()), out(query.size());
      span.out = expected.data();
      find_kv_kernels(*table, "i16")->attend(own, span);
      span.out = out.data();
      table->attend_tiles(store.view, span);
      EXPECT_TRUE(same_bits(expected, out)) << table->isa << ", position " << position;
    }
  }
}

// What is no number makes the query that meets it none, and no other.
TEST(Tiles, SpreadNaNToWhatMeetsItAlone) {
  for (const TileForm& form :
       {TileForm{TileKind::kFloat}, {TileKind::kInt16}, {TileKind::kInt8, 32, 32}}) {
    Random random(4);
    constexpr int32_t n = 64;
    TileStore store(random, n, 2, form);
    std::vector<float> queries = random.normals(3 * n);
    queries[n + 5] = NAN;
    AttentionSpan span;
    span.block_table = span.open_table = store.table.data();
    span.position = 70;
    span.heads = 3;
    span.scale = 0.1f;
    span.query = queries.data();
    span.query_stride = span.out_stride = n;
    for (const CpuKernels* table : available_tables()) {
      std::vector<float> out(queries.size());
      span.out = out.data();
      table->attend_tiles(store.view, span);
      for (int32_t i = 0; i < 3 * n; ++i) {
        EXPECT_EQ(std::isnan(out[static_cast<size_t>(i)]), i / n == 1) << table->isa << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels::testing
