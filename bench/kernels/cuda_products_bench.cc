// SPDX-License-Identifier: Apache-2.0
// How long products and attention take on this GPU, each alone: cuda_products_bench [NAME...], all
// or those whose names begin so. Shapes of Qwen3-30B-A3B. Each launch takes other experts or
// another copy of a matrix, so that weights come from memory and not from the cache; the bytes
// beside a time are those of the weights that a launch reads (attention: keys and values).
#include <random>

#include "bench/kernels/cuda_timing.h"
#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/linear/linear_float.h"
#include "kernels/cuda/router/router.h"

namespace {

using namespace vitrine::kernels;
using namespace vitrine::kernels::cuda;
using namespace cuda_timing;

constexpr int64_t kHidden = 2048, kIntermediate = 768, kVocab = 151936;
constexpr int64_t kHeads = 32, kKvHeads = 4, kHeadDim = 128, kExperts = 128, kTopK = 8;
constexpr int kSets = 16;  // of routes: their experts are more than the cache holds
constexpr int kLaunches = 48;
constexpr int64_t kFarBytes = int64_t{256} << 20;  // so much later nothing is in a cache any more

/// Says what weights are kept in: whole numbers with a scale for a group of columns, blocks of a
/// GGUF file, or E4M3 floats.
struct Kind {
  const char* name;
  Weight weight;

  PackedLayout layout(int64_t rows, int64_t cols) const {
    Weight own = weight;
    own.rows = rows;
    own.cols = cols;
    return packed_layout(own);
  }
};

Kind integers(const char* name, WeightFormat format, int32_t group) {
  return {name, {.format = format, .scale_format = ScaleFormat::kF16, .group_size = group}};
}

const Kind kW4 = integers("W4", WeightFormat::kInt4, 128);
const Kind kW4Short = integers("W4", WeightFormat::kInt4, 32);
const Kind kW8 = integers("W8", WeightFormat::kInt8, 128);
const Kind kE4M3 = {"E4M3", {.format = WeightFormat::kE4M3, .group_size = kE4M3Group}};

/// `count` matrices of bytes 0x11: finite numbers and scales, of no meaning.
PackedMatrix make_matrices(const PackedLayout& layout, int64_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(layout.bytes() * count)));
  check(cudaMemset(memory, 0x11, static_cast<size_t>(layout.bytes() * count)));
  return {layout, memory};
}

uint8_t* zero_bytes(int64_t count) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(count)));
  check(cudaMemset(memory, 0, static_cast<size_t>(count)));
  return static_cast<uint8_t*>(memory);
}

/// What group_by_expert leaves, for random routes.
struct RouteSet {
  int32_t* tile_experts;
  int32_t* num_tiles;
  int32_t* row_routes;
  int64_t active = 0;  // experts

  RouteSet(std::mt19937& random, int32_t tokens, int32_t tile) {
    std::vector<std::vector<int32_t>> routes(kExperts);
    std::vector<int32_t> experts(kExperts);
    for (int32_t e = 0; e < kExperts; ++e) experts[static_cast<size_t>(e)] = e;
    for (int32_t token = 0; token < tokens; ++token) {
      std::shuffle(experts.begin(), experts.end(), random);
      for (int32_t slot = 0; slot < kTopK; ++slot) {
        routes[static_cast<size_t>(experts[static_cast<size_t>(slot)])].push_back(token * kTopK +
                                                                                  slot);
      }
    }
    std::vector<int32_t> tiles, rows;
    for (int32_t e = 0; e < kExperts; ++e) {
      const auto& own = routes[static_cast<size_t>(e)];
      active += own.empty() ? 0 : 1;
      for (size_t i = 0; i < own.size(); ++i) {
        if (i % static_cast<size_t>(tile) == 0) tiles.push_back(e);
        rows.push_back(own[i]);
      }
      while (rows.size() % static_cast<size_t>(tile) != 0) rows.push_back(-1);
    }
    const auto copy = [](const std::vector<int32_t>& values) {
      return device_array<int32_t>(static_cast<int64_t>(values.size()),
                                   [&](int64_t i) { return values[static_cast<size_t>(i)]; });
    };
    tile_experts = copy(tiles);
    row_routes = copy(rows);
    num_tiles = copy({static_cast<int32_t>(tiles.size())});
  }
};

const char* name_of(ActivationFormat format) {
  switch (format) {
    case ActivationFormat::kInt8: return "A8";
    case ActivationFormat::kBF16: return "A16";
    default: return "AE4M3";
  }
}

constexpr int kDownCopies = 3;  // one token's experts of all sets are hardly more than a cache

void bench_experts(cudaStream_t stream, const Kind& format, ActivationFormat activations,
                   int32_t tokens, const ProductTuning& tuning) {
  const std::string kind = std::string(format.name) + name_of(activations) + "/" +
                           std::to_string(format.weight.group_size) + " tile " +
                           std::to_string(tuning.tokens_per_tile) +
                           (tuning.slices > 1 ? " x" + std::to_string(tuning.slices) : "");
  if (!is_wanted("gate_up " + kind) && !is_wanted("down " + kind)) return;
  const PackedLayout inner = format.layout(kIntermediate, kHidden);
  const PackedLayout outer = format.layout(kHidden, kIntermediate);
  const PackedMatrix gate = make_matrices(inner, kExperts), up = make_matrices(inner, kExperts),
                     down = make_matrices(outer, kExperts * kDownCopies);
  std::mt19937 random(1);
  std::vector<RouteSet> sets;
  int64_t active = 0;
  for (int i = 0; i < kSets; ++i) {
    sets.emplace_back(random, tokens, tuning.tokens_per_tile);
    active += sets.back().active;
  }
  const int64_t routes = int64_t{tokens} * kTopK;
  Rows rows{.format = activations, .count = static_cast<int32_t>(routes)};
  const uint8_t* input = zero_bytes(tokens * bf16_row_bytes(kHidden));
  const uint8_t* hidden = zero_bytes(routes * bf16_row_bytes(kIntermediate));
  float* out = floats(routes * kHidden);
  int next = 0;
  const auto choose = [&](const uint8_t* from, int32_t routes_per_row) {
    const RouteSet& set = sets[static_cast<size_t>(next++ % kSets)];
    rows.activations = from;
    rows.tile_experts = set.tile_experts;
    rows.num_tiles = set.num_tiles;
    rows.row_routes = set.row_routes;
    rows.routes_per_row = routes_per_row;
  };
  const double experts = static_cast<double>(active) / kSets;
  print("gate_up " + kind, tokens,
        Timing(
            stream,
            [&] {
              choose(input, kTopK);
              return gate_up(gate, up, kExperts, rows, {.out = out, .out_stride = kIntermediate},
                             tuning, stream);
            },
            kLaunches),
        experts * 2.0 * static_cast<double>(inner.bytes()));
  print("down " + kind, tokens,
        Timing(
            stream,
            [&] {
              choose(hidden, 1);
              const auto* data = static_cast<const uint8_t*>(down.data);
              const int64_t copy = next / kSets % kDownCopies;
              return linear({outer, data + copy * kExperts * outer.bytes()}, kExperts, rows,
                            {.out = out, .out_stride = kHidden}, tuning, stream);
            },
            kLaunches),
        experts * static_cast<double>(outer.bytes()));
  for (const PackedMatrix& matrix : {gate, up, down})
    check(cudaFree(const_cast<void*>(matrix.data)));
}

void bench_dense(cudaStream_t stream, const char* name, int64_t out_rows, int64_t cols,
                 int32_t tokens, const ProductTuning& tuning) {
  const PackedLayout layout = kW4.layout(out_rows, cols);
  const int64_t copies = kFarBytes / layout.bytes() + 1;
  const PackedMatrix matrices = make_matrices(layout, copies);
  const Rows rows{.activations = zero_bytes(tokens * int8_row_bytes(cols)), .count = tokens};
  float* out = floats(tokens * out_rows);
  int64_t next = 0;
  const std::string kind = std::string(name) + " W4A8/128 tile " +
                           std::to_string(tuning.tokens_per_tile) +
                           (tuning.slices > 1 ? " x" + std::to_string(tuning.slices) : "");
  print(kind, tokens,
        Timing(
            stream,
            [&] {
              const auto* data = static_cast<const uint8_t*>(matrices.data);
              return linear({layout, data + next++ % copies * layout.bytes()}, 1, rows,
                            {.out = out, .out_stride = out_rows}, tuning, stream);
            },
            kLaunches),
        static_cast<double>(layout.bytes()));
  check(cudaFree(const_cast<void*>(matrices.data)));
}

void bench_router(cudaStream_t stream, int32_t tokens) {
  const int64_t bytes = kExperts * kHidden * 2, copies = kFarBytes / bytes;
  const uint8_t* matrices = zero_bytes(copies * bytes);
  const FloatRows rows{floats(tokens * kHidden), kHidden, {.count = tokens}};
  float* out = floats(tokens * kExperts);
  int64_t next = 0;
  print("linear_float, router", tokens,
        Timing(
            stream,
            [&] {
              const FloatMatrix weight{FloatFormat::kBF16, kExperts, kHidden,
                                       matrices + next++ % copies * bytes};
              return linear_float(weight, 1, rows, {.out = out, .out_stride = kExperts}, stream);
            },
            static_cast<int>(copies)),
        static_cast<double>(bytes));
}

/// `sequences` of `context` positions; each decodes one token, or one of them takes a chunk.
void bench_attention(cudaStream_t stream, int32_t sequences, int32_t context, int32_t chunk) {
  const int32_t tokens = sequences * chunk;
  const int64_t blocks = context / kKvBlock;
  const int64_t elements = int64_t{sequences} * blocks * kKvHeads * kKvBlock * kHeadDim;
  const bool decode = chunk == 1;
  // A chunk reads its keys and values again and again; a decoded token once, from memory.
  const int64_t copies = decode ? std::min<int64_t>(kFarBytes / (4 * elements) + 1, kLaunches) : 1;
  uint8_t* const keys = zero_bytes(copies * 2 * elements);
  uint8_t* const values = zero_bytes(copies * 2 * elements);
  AttentionArguments a{.kv = {keys, values, FloatFormat::kBF16, kKvHeads, kHeadDim},
                       .heads = kHeads,
                       .scale = 0.1f,
                       .queries = floats(int64_t{tokens} * kHeads * kHeadDim),
                       .tokens = tokens,
                       .ranges = (context + kAttentionRange - 1) / kAttentionRange,
                       .out = floats(int64_t{tokens} * kHeads * kHeadDim)};
  a.positions = device_array<int32_t>(
      tokens, [&](int64_t i) { return static_cast<int32_t>(context - chunk + i % chunk); });
  a.blocks.sequences =
      device_array<int32_t>(tokens, [&](int64_t i) { return static_cast<int32_t>(i / chunk); });
  a.blocks.tables =
      device_array<int32_t>(sequences * blocks, [](int64_t i) { return static_cast<int32_t>(i); });
  a.blocks.stride = blocks;
  a.scratch = floats(attention_scratch_floats(a));
  const auto time = [&](const std::string& name, int32_t tile, const auto& run) {
    const int32_t tiles = (chunk + tile - 1) / tile;
    std::vector<AttentionTile> list;
    for (int32_t s = 0; s < sequences; ++s) {
      for (int32_t t = 0; t < tiles; ++t) {
        list.push_back({s * chunk + t * tile, std::min(tile, chunk - t * tile)});
      }
    }
    a.tile_count = static_cast<int32_t>(list.size());
    a.tiles = device_array<AttentionTile>(a.tile_count,
                                          [&](int64_t i) { return list[static_cast<size_t>(i)]; });
    int64_t next = 0;
    const auto run_far = [&] {
      const int64_t at = next++ % copies * 2 * elements;
      a.kv.keys = keys + at;
      a.kv.values = values + at;
      return run();
    };
    print(name + " at " + std::to_string(context), tokens,
          Timing(stream, run_far, decode ? kLaunches : 4), 4.0 * static_cast<double>(elements));
  };
  const auto exact = decode ? AttentionQueries::k8 : AttentionQueries::k16;
  const auto mma = decode ? MmaRows::k16 : MmaRows::k64;
  time("attention", attention_tile_tokens(kHeads, kKvHeads, exact),
       [&] { return attention(a, exact, stream); });
  time("attention_mma", attention_mma_tile_tokens(kHeads, kKvHeads, mma),
       [&] { return attention_mma(a, mma, stream); });
}

/// Cuts worth a time: of one token slices of K, of more the tiles that its routes fill.
std::vector<ProductTuning> expert_cuts(int32_t tokens) {
  if (tokens == 1) return {{8, 1, 1}, {8, 2, 1}, {8, 4, 1}, {8, 8, 1}};
  return {{8}, {16}};
}
std::vector<ProductTuning> dense_cuts(int32_t tokens) {
  if (tokens == 1) return {{8, 1, 1}, {8, 4, 1}, {8, 8, 1}};
  if (tokens == 16) return {{8, 4}, {16, 1}, {16, 4}};
  return {{16, 1}, {16, 2}, {16, 4}, {32}};
}

constexpr std::pair<const char*, BlockFormat> kBlocks[] = {
    {"Q4_K", BlockFormat::kQ4_K}, {"Q6_K", BlockFormat::kQ6_K}, {"Q2_K", BlockFormat::kQ2_K}};

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream = open_device(argc, argv);
  constexpr auto kA8 = ActivationFormat::kInt8;
  constexpr auto kA16 = ActivationFormat::kBF16;
  for (const int32_t tokens : {1, 16, 64}) {
    for (const ActivationFormat activations : {kA8, kA16}) {
      for (const ProductTuning& tuning : expert_cuts(tokens)) {
        bench_experts(stream, kW4, activations, tokens, tuning);
      }
    }
    const ProductTuning few = {
        .tokens_per_tile = 8, .slices = tokens == 1 ? 4 : 1, .tokens = tokens};
    bench_experts(stream, kW4Short, kA8, tokens, few);
    bench_experts(stream, kW4Short, kA16, tokens, few);
    bench_experts(stream, kW8, kA8, tokens, few);
    for (const auto& [name, format] : kBlocks) {
      bench_experts(stream, {name, block_weight(format, 0, 0)}, kA8, tokens, few);
    }
    for (const ProductTuning& tuning : dense_cuts(tokens)) {
      bench_dense(stream, "qkv", (kHeads + 2 * kKvHeads) * kHeadDim, kHidden, tokens, tuning);
      bench_dense(stream, "o_proj", kHidden, kHeads * kHeadDim, tokens, tuning);
    }
    bench_dense(stream, "head", kVocab, kHidden, tokens, {tokens <= 8 ? 8 : 16});
    bench_router(stream, tokens);
    bench_attention(stream, tokens, 4096, 1);
  }
  for (const ActivationFormat activations : {kA8, kA16}) {
    for (const int tile : {16, 32}) {
      bench_experts(stream, kW4, activations, 4096, {tile});
    }
  }
  bench_attention(stream, 1, 4096, 4096);
  if (compute_capability() < 89) return 0;
  for (const int tokens : {1, 64, 4096}) {
    for (const auto activations : {kA16, ActivationFormat::kE4M3}) {
      bench_experts(stream, kE4M3, activations, tokens, {tokens < 4096 ? 8 : 32});
    }
  }
  return 0;
}
