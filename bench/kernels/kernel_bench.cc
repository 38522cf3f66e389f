// SPDX-License-Identifier: Apache-2.0
// Speeds of the CPU kernels, one thread. The second argument of every name is the table.
//
//   kernel_bench --benchmark_filter=avx512
//
// bytes_per_second counts packed weight bytes (with scales; of pack/ the file's); items_per_second
// counts multiply-accumulates, or elements where there is no product.
#include <benchmark/benchmark.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "bench/kernels/bench_data.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::kernels {
namespace {

/// What is measured: a format and how its numbers are grouped.
struct Format {
  const char* name;
  Weight weight;  // without its shape
};

constexpr std::pair<const char*, BlockFormat> kBlockFormats[] = {
    {"q4_0", BlockFormat::kQ4_0},      {"q4_1", BlockFormat::kQ4_1},
    {"q5_0", BlockFormat::kQ5_0},      {"q5_1", BlockFormat::kQ5_1},
    {"q8_0", BlockFormat::kQ8_0},      {"q2_k", BlockFormat::kQ2_K},
    {"q3_k", BlockFormat::kQ3_K},      {"q4_k", BlockFormat::kQ4_K},
    {"q5_k", BlockFormat::kQ5_K},      {"q6_k", BlockFormat::kQ6_K},
    {"iq1_s", BlockFormat::kIq1S},     {"iq1_m", BlockFormat::kIq1M},
    {"iq2_xxs", BlockFormat::kIq2Xxs}, {"iq2_xs", BlockFormat::kIq2Xs},
    {"iq2_s", BlockFormat::kIq2S},     {"iq3_xxs", BlockFormat::kIq3Xxs},
    {"iq3_s", BlockFormat::kIq3S},     {"iq4_nl", BlockFormat::kIq4Nl},
    {"iq4_xs", BlockFormat::kIq4Xs},   {"tq1_0", BlockFormat::kTq1_0},
    {"tq2_0", BlockFormat::kTq2_0},    {"mxfp4", BlockFormat::kMxfp4},
    {"nvfp4", BlockFormat::kNvfp4},    {"q1_0", BlockFormat::kQ1_0},
    {"q2_0", BlockFormat::kQ2_0}};

std::vector<Format> all_formats() {
  std::vector<Format> formats;
  const auto integers = [&](const char* name, WeightFormat format, int32_t group_size,
                            OffsetFormat offsets) {
    formats.push_back({name,
                       {.format = format,
                        .scale_format = ScaleFormat::kBF16,
                        .offset_format = offsets,
                        .group_size = group_size}});
  };
  integers("int4_g32", WeightFormat::kInt4, 32, OffsetFormat::kNone);
  integers("int4_g128", WeightFormat::kInt4, 128, OffsetFormat::kNone);
  integers("int3_g32", WeightFormat::kInt3, 32, OffsetFormat::kNone);
  integers("int3_g128", WeightFormat::kInt3, 128, OffsetFormat::kNone);
  integers("int8_g32", WeightFormat::kInt8, 32, OffsetFormat::kNone);
  integers("int8_g128", WeightFormat::kInt8, 128, OffsetFormat::kNone);
  integers("int4z_g32", WeightFormat::kInt4, 32, OffsetFormat::kZeroPoint);
  integers("int3z_g128", WeightFormat::kInt3, 128, OffsetFormat::kZeroPoint);
  integers("int8z_g32", WeightFormat::kInt8, 32, OffsetFormat::kZeroPoint);
  formats.push_back({"bf16", {.format = WeightFormat::kBF16}});
  formats.push_back({"bf16_tiled", {.format = WeightFormat::kBF16, .tiled = true}});
  formats.push_back({"e4m3", {.format = WeightFormat::kE4M3, .group_size = kE4M3Group}});
  formats.push_back({"f32", {.format = WeightFormat::kF32}});
  for (const auto& [name, format] : kBlockFormats) {
    formats.push_back({name, block_weight(format, 0, 0)});
  }
  return formats;
}

/// A matrix of random bytes; scales and minimums of one value.
struct Packed {
  Aligned<uint8_t> data;
  Aligned<uint8_t> scales;
  Aligned<uint8_t> offsets;
  Weight weight;

  Packed(const Weight& format, int64_t rows, int64_t cols) : weight(format) {
    weight.rows = rows;
    weight.cols = cols;
    const WeightBytes bytes = packed_bytes(weight);
    data = noise(bytes.data);
    if (is_float_format(weight.format)) {  // exponents near 0: no denormals and NaNs
      const auto step = static_cast<size_t>(element_bytes(weight.format));
      for (size_t i = step - 1; i < data.size(); i += step) data[i] = (data[i] & 0x80) | 0x3d;
    }
    scales.resize(bytes.scales, 0x2c);  // a small number in each of the scale formats
    offsets.resize(bytes.offsets, 0x2c);
    weight.data = data.data();
    weight.scales = scales.data();
    weight.offsets = offsets.data();
  }
  size_t bytes() const { return data.size() + scales.size() + offsets.size(); }
};

struct Rows {
  Aligned<float> values;
  Aligned<int8_t> quantized;
  Aligned<float> scales;
  Aligned<GroupSum> sums;
  Activations view;

  Rows(int64_t count, int64_t cols, int32_t group_size) : values(normals(count * cols)) {
    view.values = values.data();
    view.value_stride = cols;
    if (group_size == 0) return;
    const int64_t groups = cols / group_size;
    quantized.resize(count * cols);
    scales.resize(count * groups);
    sums.resize(count * groups);
    for (int64_t m = 0; m < count; ++m) {
      portable_kernels().quantize_row(&values[m * cols], cols, group_size, &quantized[m * cols],
                                      &scales[m * groups], &sums[m * groups]);
    }
    view.quantized = quantized.data();
    view.quantized_stride = cols;
    view.scales = scales.data();
    view.sums = sums.data();
    view.group_stride = groups;
  }
};

void linear(benchmark::State& state, const CpuKernels* table, const Weight& format, int64_t rows,
            int64_t cols, int32_t count) {
  const Packed matrix(format, rows, cols);
  const Rows input(count, cols, format.group_size);
  Aligned<float> out(count * rows);
  for (auto _ : state) {
    table->linear(matrix.weight, 0, rows, input.view, {nullptr, nullptr, count}, nullptr, nullptr,
                  out.data(), rows);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * matrix.bytes()));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * rows * cols * count);
}

void gate_up(benchmark::State& state, const CpuKernels* table, const Weight& format, int64_t rows,
             int64_t cols, int32_t count) {
  const Packed gate(format, rows, cols);
  const Packed up(format, rows, cols);
  const Rows input(count, cols, format.group_size);
  Aligned<float> out(count * rows);
  for (auto _ : state) {
    table->gate_up(gate.weight, up.weight, 0, rows, input.view, {nullptr, nullptr, count},
                   out.data(), rows);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * 2 * gate.bytes()));
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * 2 * rows * cols * count);
}

/// How fast one thread reads memory: the most that a product of that many bytes can reach.
void read_memory(benchmark::State& state, size_t megabytes) {
  const Aligned<uint8_t> bytes = noise(megabytes << 20);
  const auto* words = reinterpret_cast<const uint64_t*>(bytes.data());
  const size_t count = bytes.size() / sizeof(uint64_t);
  for (auto _ : state) {
    uint64_t sums[32] = {};
    for (size_t i = 0; i < count; i += 32) {
      for (size_t j = 0; j < 32; ++j) sums[j] ^= words[i + j];
    }
    for (const uint64_t sum : sums) benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * bytes.size()));
}

void attention(benchmark::State& state, const CpuKernels* table, const char* codec,
               int32_t positions, int32_t tokens, int32_t heads, int32_t head_dim) {
  constexpr int32_t kBlockSize = 64;
  const int32_t blocks = (positions + kBlockSize - 1) / kBlockSize;
  const kernels::KvKernels& kv = *kernels::find_kv_kernels(*table, codec);
  const int64_t bytes = kernels::float_kv_bytes(kernels::WeightFormat::kF32, head_dim) *
                        kBlockSize * blocks;  // others take less
  Aligned<std::byte> keys(bytes), values(bytes);
  const Aligned<float> query = normals(tokens * heads * head_dim);
  Aligned<int32_t> block_table(blocks);
  for (int32_t i = 0; i < blocks; ++i) block_table[i] = blocks - 1 - i;
  Aligned<float> out(query.size());
  const KvView view{keys.data(), values.data(), 1, head_dim, kBlockSize};
  const Aligned<float> rows = normals(static_cast<size_t>(positions) * head_dim);
  for (int32_t p = 0; p < positions; ++p) {
    const float* row = rows.data() + static_cast<size_t>(p) * head_dim;
    kv.write(view, block_table[p / kBlockSize], p % kBlockSize, 0, row, row);
  }
  kernels::AttentionSpan span;
  span.block_table = block_table.data();
  span.position = positions - tokens;
  span.tokens = tokens;
  span.heads = heads;
  span.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  span.query = query.data();
  span.out = out.data();
  span.query_stride = span.out_stride = head_dim;
  span.query_token_stride = span.out_token_stride = int64_t{heads} * head_dim;
  for (auto _ : state) {
    kv.attend(view, span);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * 2 * positions * tokens *
                          heads * head_dim);
}

void head(benchmark::State& state, const CpuKernels* table, int64_t vocabulary, bool statistics) {
  constexpr int64_t kRows = 32;  // one row again and again, and its branches are known in advance
  Aligned<float> logits = normals(kRows * vocabulary);
  int64_t row = 0;
  const int64_t count = (vocabulary + kHeadBlock - 1) / kHeadBlock;
  Aligned<HeadBlockStats> blocks(count);
  HeadStats stats;
  for (auto _ : state) {
    float* own = logits.data() + row * vocabulary;
    row = (row + 1) % kRows;
    for (int64_t b = 0; b < count; ++b) {
      const int64_t end = (b + 1) * kHeadBlock;
      table->head_block(own, b * kHeadBlock, end < vocabulary ? end : vocabulary, 1.0f, statistics,
                        &blocks[b], nullptr);
    }
    table->head_merge(blocks.data(), static_cast<int32_t>(count), &stats);
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * vocabulary);
}

void router(benchmark::State& state, const CpuKernels* table, int32_t n, int32_t k) {
  const Aligned<float> logits = normals(n);
  Aligned<float> probs(n), weights(k);
  Aligned<int32_t> ids(k);
  for (auto _ : state) {
    table->router_top_k(logits.data(), n, k, true, false, probs.data(), ids.data(), weights.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * n);
}

void norm_and_quantize(benchmark::State& state, const CpuKernels* table, int64_t n) {
  const Aligned<float> x = normals(n);
  Aligned<float> out(n), scales(n / 32);
  Aligned<int8_t> values(n);
  Aligned<GroupSum> sums(n / 32);
  for (auto _ : state) {
    table->rms_norm(x.data(), x.data(), 1e-6f, n, out.data());
    table->quantize_row(out.data(), n, 32, values.data(), scales.data(), sums.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * n);
}

void quantize(benchmark::State& state, const CpuKernels* table, int64_t n) {
  const Aligned<float> x = normals(n);
  Aligned<float> scales(n / 32);
  Aligned<int8_t> values(n);
  Aligned<GroupSum> sums(n / 32);
  for (auto _ : state) {
    table->quantize_row(x.data(), n, 32, values.data(), scales.data(), sums.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations()) * n);
}

/// Packs blocks of zeros, and counts the bytes of the file.
void pack(benchmark::State& state, const CpuKernels* table, BlockFormat format, int64_t rows,
          int64_t cols) {
  const Weight weight = block_weight(format, rows, cols);
  const WeightBytes bytes = packed_bytes(weight);
  const Aligned<uint8_t> blocks(rows * block_row_bytes(format, cols));
  Aligned<uint8_t> data(static_cast<int64_t>(bytes.data));
  Aligned<uint8_t> scales(static_cast<int64_t>(bytes.scales));
  Aligned<uint8_t> offsets(static_cast<int64_t>(bytes.offsets));
  for (auto _ : state) {
    table->pack_blocks(format, weight, 0, rows, blocks.data(), data.data(), scales.data(),
                       bytes.offsets == 0 ? nullptr : offsets.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * rows *
                          block_row_bytes(format, cols));
}

void register_table(const CpuKernels* table) {
  const auto name = [&](const std::string& what) { return what + "/" + table->isa; };
  const struct {
    const char* name;
    int64_t rows;
    int64_t cols;
  } sizes[] = {{"512x512", 512, 512},
               {"16384x32", 16384, 32},  // an adapter's
               {"8192x512", 8192, 512},
               {"16384x2048", 16384, 2048},
               {"65536x4096", 65536, 4096}};
  for (const Format& f : all_formats()) {
    for (const auto& size : sizes) {
      for (const int32_t count : {1, 2, 3, 4, 8, 16, 32, 128}) {
        if (size.cols == 32 && !is_float_format(f.weight.format)) continue;
        if (size.rows > 512 && count > 8) continue;  // from the L3 cache, from memory
        const std::string label =
            std::string(f.name) + "/" + size.name + "/tokens:" + std::to_string(count);
        benchmark::RegisterBenchmark(name("linear/" + label).c_str(), linear, table, f.weight,
                                     size.rows, size.cols, count);
        if (size.rows > 512 || f.weight.tiled) continue;
        benchmark::RegisterBenchmark(name("gate_up/" + label).c_str(), gate_up, table, f.weight,
                                     size.rows, size.cols, count);
      }
    }
  }
  for (const int32_t positions : {64, 1024, 16384}) {
    for (const auto& [tokens, heads] : {std::pair{1, 1}, {1, 3}, {1, 4}, {1, 8}, {8, 4}, {32, 1}}) {
      for (const int32_t head_dim : {64, 128}) {
        const std::string label = std::to_string(positions) + "/tokens:" + std::to_string(tokens) +
                                  "/heads:" + std::to_string(heads) +
                                  "/dim:" + std::to_string(head_dim);
        benchmark::RegisterBenchmark(name("attention/f32/" + label).c_str(), attention, table,
                                     "f32", positions, tokens, heads, head_dim);
        benchmark::RegisterBenchmark(name("attention/i16/" + label).c_str(), attention, table,
                                     "i16", positions, tokens, heads, head_dim);
      }
    }
  }
  for (const bool statistics : {false, true}) {
    benchmark::RegisterBenchmark(name(statistics ? "head/8192/statistics" : "head/8192").c_str(),
                                 head, table, 8192, statistics);
  }
  benchmark::RegisterBenchmark(name("router/8/2").c_str(), router, table, 8, 2);
  benchmark::RegisterBenchmark(name("router/128/8").c_str(), router, table, 128, 8);
  benchmark::RegisterBenchmark(name("norm_and_quantize/512").c_str(), norm_and_quantize, table,
                               512);
  for (const int64_t n : {64, 128, 512, 4096}) {
    benchmark::RegisterBenchmark(name("quantize/" + std::to_string(n)).c_str(), quantize, table, n);
  }
  for (const auto& [format_name, format] : kBlockFormats) {
    benchmark::RegisterBenchmark(name(std::string("pack/") + format_name + "/768x2048").c_str(),
                                 pack, table, format, 768, 2048);
  }
}

}  // namespace
}  // namespace vitrine::kernels

int main(int argc, char** argv) {
  for (const size_t megabytes : {18, 150}) {  // in the L3 cache; as far from it as a machine allows
    benchmark::RegisterBenchmark(("read/" + std::to_string(megabytes) + "MiB").c_str(),
                                 vitrine::kernels::read_memory, megabytes);
  }
  for (const auto* table : vitrine::kernels::cpu_kernel_tables()) {
    vitrine::kernels::register_table(table);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
