// SPDX-License-Identifier: Apache-2.0
// What the recorder costs: on the step's thread (ring) and off it (decoding, JSON). The passes have
// the shipped model's shape: four layers, two of eight experts, one token with its row.
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "vitrine/audit_log.h"

namespace {

using namespace vitrine;

/// `num_layers` layers, `top_k` of `num_experts` experts.
AuditLayout layers_of(int32_t num_layers, int32_t num_experts, int32_t top_k, AuditLevel level) {
  AuditLayout layout;
  layout.mode = AuditMode::kDeferred;
  layout.level = level;
  int32_t word = 0;
  for (int32_t i = 0; i < num_layers; ++i) {
    AuditLayout::Layer layer{.layer = i, .top_k = top_k, .num_experts = num_experts};
    layer.residual_norm = word;
    layer.expert_ids = word + 1;
    layer.expert_weights = word + 1 + top_k;
    word += 1 + 2 * top_k;
    if (level == AuditLevel::kFull) {
      layer.router_probs = word;
      word += num_experts;
    }
    layout.layers.push_back(layer);
  }
  layout.token_words = word;
  layout.chosen_logit = 0;
  layout.log_sum_exp = 1;
  layout.entropy = 2;
  layout.top_ids = 3;
  layout.top_logits = 3 + kAuditTopTokens;
  layout.logits_digest = 3 + 2 * kAuditTopTokens;
  layout.sampler_candidates = layout.logits_digest + 2;
  layout.sampler_probability = layout.sampler_candidates + 1;
  layout.row_words = layout.sampler_probability + 1;
  return layout;
}

AuditLayout four_layers(AuditLevel level) { return layers_of(4, 8, 2, level); }

/// One pass of one generated token, with numbers as long as real ones.
std::vector<std::byte> one_token(const AuditLayout& layout, uint32_t seed = 1) {
  std::vector<std::byte> bytes(audit_record_bytes(layout, 1, 1));
  const auto put = [&](size_t at, const auto& value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
  };
  auto noise = [state = seed * 2654435761u]() mutable {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(state >> 8) / 16777216.0f;
  };
  put(0, AuditPassHeader{0, 1, 1, bytes.size()});
  put(sizeof(AuditPassHeader), AuditToken{1, 1234, 4321, 0, 1});
  const size_t ids = sizeof(AuditPassHeader) + sizeof(AuditToken);
  put(ids, int32_t{77});
  const size_t row = ids + 4;
  for (int32_t i = 0; i < 3; ++i) put(row + 4 * static_cast<size_t>(i), 10 * noise());
  for (int32_t i = 0; i < kAuditTopTokens; ++i) {
    put(row + 4 * static_cast<size_t>(layout.top_ids + i), 700 * i + 13);
    put(row + 4 * static_cast<size_t>(layout.top_logits + i), -12 * noise());
  }
  for (int32_t i = 0; i < 2; ++i) {
    put(row + 4 * static_cast<size_t>(layout.logits_digest + i), noise());
  }
  put(row + 4 * static_cast<size_t>(layout.sampler_candidates),
      1 + static_cast<int32_t>(40 * noise()));
  put(row + 4 * static_cast<size_t>(layout.sampler_probability), noise());
  const size_t words = row + 4 * static_cast<size_t>(layout.row_words);
  for (int32_t i = 0; i < layout.token_words; ++i) put(words + 4 * static_cast<size_t>(i), noise());
  for (const AuditLayout::Layer& layer : layout.layers) {
    for (int32_t slot = 0; slot < layer.top_k; ++slot) {
      const auto expert = static_cast<int32_t>(noise() * static_cast<float>(layer.num_experts));
      put(words + 4 * static_cast<size_t>(layer.expert_ids + slot), expert);
    }
  }
  return bytes;
}

/// reserve, fill, commit on a ring that overwrites: the step's thread.
void ring_pass(benchmark::State& state) {
  const AuditLayout layout = four_layers(static_cast<AuditLevel>(state.range(0)));
  const std::vector<std::byte> bytes = one_token(layout);
  SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kOverwrite);
  AuditSink& sink = ring;
  sink.open(layout, bytes.size());
  for (auto _ : state) {
    std::byte* slab = sink.reserve(bytes.size());
    std::memcpy(slab, bytes.data(), bytes.size());
    sink.commit();
    benchmark::ClobberMemory();
  }
}
BENCHMARK(ring_pass)->Arg(0)->Arg(1)->ArgName("full");

/// Measures passes on a ring whose reader keeps up (drained by this thread, outside the timing).
void ring_pass_waiting_kind(benchmark::State& state) {
  const AuditLayout layout = four_layers(AuditLevel::kStandard);
  const std::vector<std::byte> bytes = one_token(layout);
  SlabRing ring(size_t{1} << 20, SlabRing::WhenFull::kWait);
  AuditSink& sink = ring;
  sink.open(layout, bytes.size());
  constexpr int kBatch = 2000;
  while (state.KeepRunningBatch(kBatch)) {
    for (int i = 0; i < kBatch; ++i) {
      std::memcpy(sink.reserve(bytes.size()), bytes.data(), bytes.size());
      sink.commit();
    }
    state.PauseTiming();
    ring.drain([](std::span<const std::byte> record) { benchmark::DoNotOptimize(record.data()); });
    state.ResumeTiming();
  }
}
BENCHMARK(ring_pass_waiting_kind);

void decode_token(benchmark::State& state) {
  const AuditLayout layout = four_layers(static_cast<AuditLevel>(state.range(0)));
  const std::vector<std::byte> bytes = one_token(layout);
  for (auto _ : state) benchmark::DoNotOptimize(decode_pass(layout, bytes));
}
BENCHMARK(decode_token)->Arg(0)->Arg(1)->ArgName("full");

/// Ring, decoding, JSON and file together: a log of 100,000 tokens, written as fast as it can be.
/// The time is the whole process's processor time, both threads, for each token.
void json_log_token(benchmark::State& state) {
  const AuditLayout layout = four_layers(static_cast<AuditLevel>(state.range(0)));
  const std::vector<std::byte> bytes = one_token(layout);
  std::function<std::string(int32_t)> token_text;
  if (state.range(1) != 0) token_text = [](int32_t id) { return "piece" + std::to_string(id); };
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("vitrine-bench-" + std::to_string(::getpid()) + ".json");
  constexpr int kTokens = 100000;
  while (state.KeepRunningBatch(kTokens)) {
    JsonLog log(path, {}, token_text, true);
    log.sink().open(layout, bytes.size());
    for (int i = 0; i < kTokens; ++i) {
      std::memcpy(log.sink().reserve(bytes.size()), bytes.data(), bytes.size());
      log.sink().commit();
    }
    log.finish("length");
  }
  state.counters["json_bytes_per_token"] =
      static_cast<double>(std::filesystem::file_size(path)) / kTokens;
  std::filesystem::remove(path);
}
BENCHMARK(json_log_token)
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->ArgNames({"full", "text"})
    ->MeasureProcessCPUTime();

/// The sealed log: ring, decoding, rounding, commitments, compression, signatures and file
/// together. Values are random and more than a page holds, so that nothing compresses better than
/// in earnest.
void vtr_log_token(benchmark::State& state) {
  const bool is_olmoe = state.range(0) != 0;
  const auto detail = static_cast<LogDetail>(state.range(1));
  const AuditLevel level = detail == LogDetail::kFull ? AuditLevel::kFull : AuditLevel::kStandard;
  const AuditLayout layout = is_olmoe ? layers_of(16, 64, 8, level) : layers_of(4, 8, 2, level);
  std::vector<std::vector<std::byte>> tokens;
  for (uint32_t seed = 1; seed <= 5000; ++seed) tokens.push_back(one_token(layout, seed));
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("vitrine-bench-" + std::to_string(::getpid()) + ".vtr");
  LogHeader header;
  header.vocab_size = is_olmoe ? 50304 : 8192;
  VtrOptions options;
  options.detail = detail;
  options.seal = SealKey::generate();
  constexpr int kTokens = 100000;
  while (state.KeepRunningBatch(kTokens)) {
    options.overwrite = true;
    VtrLog log(path, header, options);
    log.sink().open(layout, tokens[0].size());
    for (int i = 0; i < kTokens; ++i) {
      const std::vector<std::byte>& bytes = tokens[static_cast<size_t>(i) % tokens.size()];
      std::byte* slab = log.sink().reserve(bytes.size());
      std::memcpy(slab, bytes.data(), bytes.size());
      std::memcpy(slab + sizeof(AuditPassHeader) + offsetof(AuditToken, position), &i, sizeof i);
      log.sink().commit();
    }
    log.finish("length");
  }
  state.counters["bytes_per_token"] =
      static_cast<double>(std::filesystem::file_size(path)) / kTokens;
  std::filesystem::remove(path);
}
BENCHMARK(vtr_log_token)
    ->ArgsProduct({{0, 1}, {0, 1, 2}})
    ->ArgNames({"olmoe", "level"})
    ->MeasureProcessCPUTime();

/// The step's thread alone, with a sealed log that keeps up: what recording adds to a decoded
/// token.
void vtr_step_token(benchmark::State& state) {
  const AuditLayout layout = four_layers(AuditLevel::kStandard);
  const std::vector<std::byte> bytes = one_token(layout);
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("vitrine-bench-" + std::to_string(::getpid()) + ".vtr");
  VtrOptions options;
  options.ring_bytes = size_t{8} << 20;
  options.overwrite = true;
  VtrLog log(path, {}, options);
  log.sink().open(layout, bytes.size());
  int position = 0;
  constexpr int kBatch = 2000;
  while (state.KeepRunningBatch(kBatch)) {
    for (int i = 0; i < kBatch; ++i, ++position) {
      std::byte* slab = log.sink().reserve(bytes.size());
      std::memcpy(slab, bytes.data(), bytes.size());
      std::memcpy(slab + sizeof(AuditPassHeader) + offsetof(AuditToken, position), &position,
                  sizeof position);
      log.sink().commit();
    }
    state.PauseTiming();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    state.ResumeTiming();
  }
  log.finish("length");
  std::filesystem::remove(path);
}
BENCHMARK(vtr_step_token)->Iterations(400000);

/// Verification: chain, signatures, commitments, canonical form and account.
void vtr_verify_token(benchmark::State& state) {
  const AuditLayout layout = four_layers(AuditLevel::kStandard);
  const std::vector<std::byte> bytes = one_token(layout);
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("vitrine-bench-" + std::to_string(::getpid()) + ".vtr");
  constexpr int kTokens = 100000;
  VtrLog log(path, {}, {.overwrite = true});
  log.sink().open(layout, bytes.size());
  for (int i = 0; i < kTokens; ++i) {
    std::byte* slab = log.sink().reserve(bytes.size());
    std::memcpy(slab, bytes.data(), bytes.size());
    std::memcpy(slab + sizeof(AuditPassHeader) + offsetof(AuditToken, position), &i, sizeof i);
    log.sink().commit();
  }
  log.finish("length");
  while (state.KeepRunningBatch(kTokens)) benchmark::DoNotOptimize(verify_vtr(path));
  std::filesystem::remove(path);
}
BENCHMARK(vtr_verify_token);

}  // namespace
