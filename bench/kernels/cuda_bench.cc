// SPDX-License-Identifier: Apache-2.0
// How long the CUDA kernels of a step take on this GPU, each alone: cuda_kernels_bench [NAME...],
// all or those whose names begin so. Shapes of Qwen3-30B-A3B. A kernel's launches are captured into
// one graph, so that the host's launches do not count; the least of several replays is printed
// beside the bytes that the kernel must move. Inputs are mostly in the cache, as they are in a
// step; only `read` goes to memory.
#include <cuda_runtime_api.h>

#include <cstdio>

#include "bench/kernels/cuda_timing.h"
#include "kernels/cuda/combine/combine.h"
#include "kernels/cuda/head/head.h"
#include "kernels/cuda/kv/rope_kv.h"
#include "kernels/cuda/memory/read.h"
#include "kernels/cuda/norm/rms_norm.h"
#include "kernels/cuda/router/router.h"
#include "kernels/cuda/sample/sample.h"

namespace {

using namespace vitrine::kernels::cuda;
using namespace cuda_timing;

constexpr int64_t kHidden = 2048, kVocab = 151936;
constexpr int64_t kHeads = 32, kKvHeads = 4, kHeadDim = 128, kExperts = 128, kTopK = 8;
constexpr int64_t kContext = 4096, kTileRows = 16;
constexpr int kLaunches = 50;

void bench_read(cudaStream_t stream) {
  constexpr int64_t kBytes = int64_t{4} << 30;
  void* data = nullptr;
  check(cudaMalloc(&data, kBytes));
  check(cudaMemset(data, 1, kBytes));
  uint32_t* sums = device_array<uint32_t>(kReadBlocks, [](int64_t) { return 0u; });
  print("read", 1,
        Timing(
            stream, [&] { return read_words(data, kBytes / 4, sums, stream); }, 2),
        static_cast<double>(kBytes));
  check(cudaFree(data));
}

void bench_norm(cudaStream_t stream, int32_t tokens) {
  const int64_t row = kHidden * 4;
  RmsNorm norm{
      .n = kHidden, .eps = 1e-6f, .weight = floats(kHidden), .residual = floats(tokens * kHidden)};
  norm.bf16_rows =
      device_array<uint8_t>(tokens * bf16_row_bytes(kHidden), [](int64_t) { return 0; });
  print("rms_norm, bf16", tokens,
        Timing(
            stream, [&] { return rms_norm(norm, tokens, stream); }, kLaunches),
        static_cast<double>(tokens * row * 3) / 2);
  norm.bf16_rows = nullptr;
  norm.int8_rows =
      device_array<uint8_t>(tokens * int8_row_bytes(kHidden), [](int64_t) { return 0; });
  norm.group_size = 32;
  norm.addend = {.kind = Addend::Kind::kExperts,
                 .multiplier = 0.0f,
                 .slots = floats(tokens * kTopK * kHidden),
                 .weights = floats(tokens * kTopK),
                 .top_k = kTopK};
  print("experts + rms_norm, int8", tokens,
        Timing(
            stream, [&] { return rms_norm(norm, tokens, stream); }, kLaunches),
        static_cast<double>(tokens * (row * (kTopK + 2) + int8_row_bytes(kHidden))));
}

/// Times it with a norm of each head, or as OLMoE has it of whole rows (2,048 floats: 16 heads).
void bench_rope(cudaStream_t stream, int32_t tokens, bool whole_rows) {
  const int32_t query_heads = whole_rows ? kHeads / 2 : kHeads;
  const int32_t kv_heads = whole_rows ? query_heads : kKvHeads;
  const int64_t heads = query_heads + 2 * kv_heads;
  RopeKv step{.heads = query_heads,
              .qkv = floats(tokens * heads * kHeadDim),
              .qkv_stride = heads * kHeadDim,
              .query_norm = floats(query_heads * kHeadDim),
              .key_norm = floats(kv_heads * kHeadDim),
              .norm_whole_row = whole_rows};
  step.eps = 1e-6f;
  step.cos = floats(kContext * kHeadDim / 2);
  step.sin = floats(kContext * kHeadDim / 2);
  step.positions = device_array<int32_t>(
      tokens, [](int64_t i) { return static_cast<int32_t>(17 * i % kContext); });
  step.blocks.stride = kContext / kKvBlock;
  step.blocks.tables = device_array<int32_t>(tokens * step.blocks.stride, [&](int64_t i) {
    return static_cast<int32_t>(i / step.blocks.stride);
  });
  step.blocks.sequences =
      device_array<int32_t>(tokens, [](int64_t i) { return static_cast<int32_t>(i); });
  const int64_t cache = static_cast<int64_t>(tokens) * kv_heads * kKvBlock * kHeadDim;
  step.cache = {floats(cache), floats(cache), FloatFormat::kBF16, kv_heads, kHeadDim};
  step.query = floats(static_cast<int64_t>(tokens) * query_heads * kHeadDim);
  print(whole_rows ? "rope_kv_write, whole rows" : "rope_kv_write", tokens,
        Timing(
            stream, [&] { return rope_kv_write(step, tokens, stream); }, kLaunches),
        static_cast<double>(tokens * kHeadDim *
                            (4 * heads + 4 * int64_t{query_heads} + 4 * int64_t{kv_heads} + 4)));
}

void bench_routing(cudaStream_t stream, int32_t tokens) {
  Router router{.num_experts = kExperts,
                .top_k = kTopK,
                .normalize = true,
                .logits = floats(tokens * kExperts)};
  router.ids = device_array<int32_t>(tokens * kTopK, [](int64_t) { return 0; });
  router.weights = floats(tokens * kTopK);
  print("router_top_k", tokens,
        Timing(
            stream, [&] { return router_top_k(router, tokens, stream); }, kLaunches),
        static_cast<double>(tokens) * (4 * kExperts + 8 * kTopK));
  const int64_t tiles = most_tiles(tokens, kTopK, kExperts, kTileRows);
  const auto words = [](int64_t count) {
    return device_array<int32_t>(count, [](int64_t) { return 0; });
  };
  const Grouping grouping{kExperts,
                          kTopK,
                          kTileRows,
                          router.ids,
                          words(kExperts),
                          words(kExperts + 1),
                          words(tiles * kTileRows),
                          words(tokens * kTopK),
                          words(tiles),
                          words(1)};
  print("group_by_expert", tokens,
        Timing(
            stream, [&] { return group_by_expert(grouping, tokens, stream); }, kLaunches),
        static_cast<double>(16 * kTopK * tokens + 4 * tiles * kTileRows));
}

void bench_head(cudaStream_t stream, int32_t rows) {
  Head head{.vocab = kVocab, .logits = floats(rows * kVocab)};
  void* blocks = nullptr;
  check(cudaMalloc(&blocks, static_cast<size_t>(rows * head_blocks(kVocab)) * sizeof(HeadBlock)));
  head.blocks = static_cast<HeadBlock*>(blocks);
  head.chosen_ids = device_array<int32_t>(rows, [](int64_t) { return 0; });
  const auto bytes = static_cast<double>(rows * kVocab * 4);
  const auto run = [&] { return head_epilogue(head, rows, stream); };
  print("head_epilogue", rows, Timing(stream, run, kLaunches), bytes);
  head.record = {
      device_array<int32_t>(rows * int64_t{32}, [](int64_t) { return 0; }), 32, 0, 1, 2, 3, 13, 23};
  print("head_epilogue, recorded", rows, Timing(stream, run, kLaunches), bytes);
  using Kind = SampleStep::Kind;
  const SampleStep steps[] = {
      {Kind::kDivide, 0.8}, {Kind::kTopK, 40}, {Kind::kTopP, 0.95}, {Kind::kDraw, 0.5}};
  const SampleStep* all = device_array<SampleStep>(int64_t{rows} * kMaxSampleSteps, [&](int64_t i) {
    return i % kMaxSampleSteps < 4 ? steps[i % kMaxSampleSteps] : SampleStep{};
  });
  Sampling sampling;
  sampling.vocab = kVocab;
  sampling.logits = head.logits;
  sampling.steps = all;
  sampling.chosen_ids = head.chosen_ids;
  sampling.facts = floats(int64_t{kSampleFacts} * rows);
  print("sample_rows, top-k, top-p", rows,
        Timing(
            stream, [&] { return sample_rows(sampling, rows, stream); }, kLaunches),
        bytes);
}

}  // namespace

int main(int argc, char** argv) {
  cudaStream_t stream = open_device(argc, argv);
  bench_read(stream);
  for (const int32_t tokens : {1, 16, 64, 1024, 4096}) {
    bench_routing(stream, tokens);
    if (tokens > 1024) break;
    bench_norm(stream, tokens);
    for (const bool whole_rows : {false, true}) bench_rope(stream, tokens, whole_rows);
    if (tokens <= 64) bench_head(stream, tokens);
  }
  return 0;
}
