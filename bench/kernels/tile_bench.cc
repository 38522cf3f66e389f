// SPDX-License-Identifier: Apache-2.0
// Measures what keys and values as tiles cost to read, one query a kv head: i16's and f32's own
// kernels beside the walk over tiles, in OLMoE's shape (16 heads, 16 kv heads, 128 elements). One
// thread, one layer, all heads.
//
//   tile_bench --benchmark_filter=avx512
//
// "in_place": the codec points at its block. "copied": it writes the tile into the room it is
// given.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstring>
#include <string>

#include "bench/kernels/bench_data.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::kernels {
namespace {

constexpr int32_t kHeads = 16, kDim = 128, kBlock = 64;

/// One layer's table, block order reversed, and a query of all heads.
struct Layer {
  explicit Layer(int32_t positions)
      : query(normals(size_t{kHeads} * kDim)), out(size_t{kHeads} * kDim) {
    const int32_t blocks = (positions + kBlock - 1) / kBlock;
    for (int32_t i = 0; i < blocks; ++i) table.push_back(blocks - 1 - i);
    span.block_table = span.open_table = table.data();
    span.position = positions - 1;
    span.scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  }
  template <typename Attend>
  void attend(benchmark::State& state, const KvView& view, const Attend& run) {
    for (auto _ : state) {
      for (int32_t head = 0; head < kHeads; ++head) {
        span.kv_head = head;
        span.query = query.data() + ptrdiff_t{head} * kDim;
        span.out = out.data() + ptrdiff_t{head} * kDim;
        run(view, span);
      }
      benchmark::ClobberMemory();
    }
  }
  size_t blocks() const { return table.size(); }

  Aligned<float> query, out;
  Aligned<int32_t> table;
  AttentionSpan span;
};

void own_kernel(benchmark::State& state, const CpuKernels* table, const char* codec,
                int32_t positions) {
  Layer layer(positions);
  const KvKernels& kv = *find_kv_kernels(*table, codec);
  const size_t bytes = layer.blocks() * kHeads * kBlock * kDim * sizeof(float);
  Aligned<std::byte> keys(bytes), values(bytes);
  const KvView view{keys.data(), values.data(), kHeads, kDim, kBlock};
  const Aligned<float> rows = normals(size_t{2} * kDim);
  for (int32_t p = 0; p < positions; ++p) {
    for (int32_t head = 0; head < kHeads; ++head) {
      kv.write(view, layer.table[static_cast<size_t>(p / kBlock)], p % kBlock, head,
               rows.data() + p % kDim, rows.data() + (p + head) % kDim);
    }
  }
  layer.attend(state, view, kv.attend);
}

/// Bytes of a block's tile: keys, values and the scales of each.
struct TileBytes {
  size_t numbers, scales;
  explicit TileBytes(const TileForm& form) {
    const size_t element = form.kind == TileKind::kFloat   ? 4
                           : form.kind == TileKind::kInt16 ? 2
                                                           : 1;
    const auto of = [](int32_t group) {
      return group == 0 ? size_t{kDim} : static_cast<size_t>(kDim / group) * kBlock;
    };
    numbers = element * kDim * kBlock;
    scales = form.kind == TileKind::kFloat   ? 0
             : form.kind == TileKind::kInt16 ? kBlock * sizeof(float)
                                             : of(form.key_group) * sizeof(float);
  }
  size_t all() const { return 2 * (numbers + scales); }
};

template <bool kCopies>
void decode(const TileCodec& codec, const TileSource& source, const TileRoom& room, Tile& tile) {
  const TileBytes bytes(codec.closed);
  const std::byte* block = source.closed != nullptr ? source.closed : source.open;
  const std::byte* scales = block + 2 * bytes.numbers;
  if (!kCopies) {
    tile = {block, block + bytes.numbers, reinterpret_cast<const float*>(scales),
            reinterpret_cast<const float*>(scales + bytes.scales)};
    return;
  }
  std::memcpy(room.keys, block, bytes.numbers);
  std::memcpy(room.values, block + bytes.numbers, bytes.numbers);
  std::memcpy(room.key_scales, scales, bytes.scales);
  std::memcpy(room.value_scales, scales + bytes.scales, bytes.scales);
}

template <bool kCopies>
void tiles(benchmark::State& state, const CpuKernels* table, const TileForm& form,
           int32_t positions) {
  Layer layer(positions);
  const TileBytes bytes(form);
  TileCodec codec;
  codec.head_dim = kDim;
  codec.open_bytes = codec.closed_bytes = static_cast<int64_t>(bytes.all());
  codec.open = codec.closed = codec.fine = form;
  codec.decode = decode<kCopies>;
  Aligned<uint8_t> blocks = noise(layer.blocks() * kHeads * bytes.all());
  for (size_t block = 0; block < layer.blocks() * kHeads; ++block) {
    uint8_t* first = blocks.data() + block * bytes.all();
    auto* numbers = reinterpret_cast<float*>(first);
    const size_t count = form.kind == TileKind::kFloat ? bytes.numbers / 2 : 0;
    for (size_t i = 0; i < count; ++i) numbers[i] = static_cast<float>(i % 97) * 0.02f - 1.0f;
    if (form.kind == TileKind::kInt16) {
      auto* wide = reinterpret_cast<int16_t*>(first);
      for (size_t i = 0; i < bytes.numbers; ++i) wide[i] = static_cast<int16_t>(wide[i] / 16);
    }
    auto* scales = reinterpret_cast<float*>(first + 2 * bytes.numbers);
    for (size_t i = 0; i < bytes.scales / 2; ++i) scales[i] = 1e-3f;
  }
  KvView view{blocks.data(), blocks.data(), kHeads, kDim, kBlock};
  view.tiles = &codec;
  layer.attend(state, view, table->attend_tiles);
}

void register_table(const CpuKernels* table) {
  const struct {
    const char* name;
    TileForm form;
  } forms[] = {{"float", {TileKind::kFloat}},
               {"int16", {TileKind::kInt16}},
               {"int8_g32", {TileKind::kInt8, 32, 32}},
               {"int8_channels", {TileKind::kInt8, 0, 0}}};
  for (const int32_t positions : {512, 4096}) {
    std::string end = "/";
    end += std::to_string(positions);
    end += "/";
    end += table->isa;
    for (const char* codec : {"f32", "i16"}) {
      benchmark::RegisterBenchmark((std::string("own/") + codec + end).c_str(), own_kernel, table,
                                   codec, positions);
    }
    for (const auto& [name, form] : forms) {
      benchmark::RegisterBenchmark((std::string("in_place/") + name + end).c_str(), tiles<false>,
                                   table, form, positions);
      benchmark::RegisterBenchmark((std::string("copied/") + name + end).c_str(), tiles<true>,
                                   table, form, positions);
    }
  }
}

}  // namespace
}  // namespace vitrine::kernels

int main(int argc, char** argv) {
  for (const vitrine::kernels::CpuKernels* table : vitrine::kernels::cpu_kernel_tables()) {
    vitrine::kernels::register_table(table);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
