// SPDX-License-Identifier: Apache-2.0
// vitrine bench federation: decode speed of a federation beside its first model alone, and what
// recording every share costs.
#include <fmt/format.h>

#include <algorithm>

#include "bench.h"
#include "federate.h"
#include "slices.h"
#include "statistics.h"
#include "vitrine/audit.h"

namespace cli {

namespace {

struct BenchFederationArguments {
  std::string federation;
  int tokens = 25, prefix = 64, pairs = 40;
  bool json = false;
  DeviceOptions device;
};

constexpr const char* kFederationCancelled = "bench federation: cancelled before the end";

int run_bench(const BenchFederationArguments& arguments) {
  const vitrine::FederationSpec spec = load_federation_spec(arguments.federation);
  vitrine::EngineOptions options = arguments.device.engine_options();
  options.max_context = arguments.prefix + std::max(arguments.tokens, kTextTokens) + 1;
  options.max_step_tokens = std::min(arguments.prefix, 512);
  options.audit_mode = vitrine::AuditMode::kDeferred;
  const auto federation = vitrine::Federation::load(spec, options);
  options.kv_codecs = federation->options().kv_codecs;
  const auto base = vitrine::Engine::load(spec.specialists[0].model, options);
  catch_interrupts();
  vitrine::SlabRing ring(size_t{4} << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  federation->set_audit_sink(&ring);
  const std::vector<int32_t> prefix = spread_ids(base->summary().vocab_size, 0, arguments.prefix);
  SliceRunner together(*federation, prefix, options.max_context);
  SliceRunner alone(*base, prefix, options.max_context);
  const auto none = vitrine::AuditMode::kNone;
  together.run(none, arguments.tokens);
  alone.run(none, arguments.tokens);
  // In turns, so that what else the machine does meets both.
  std::vector<double> base_speeds, speeds, ratios, overheads;
  for (int pair = 0; pair < arguments.pairs; ++pair) {
    stop_if_interrupted(kFederationCancelled);
    const double base_seconds = alone.run(none, arguments.tokens);
    const double seconds = together.run(none, arguments.tokens);
    base_speeds.push_back(arguments.tokens / base_seconds);
    speeds.push_back(arguments.tokens / seconds);
    ratios.push_back(base_seconds / seconds);
  }
  // By itself: behind a slice of the other model the first of four finds other caches.
  for (int pair = 0; pair < arguments.pairs; ++pair) {
    stop_if_interrupted(kFederationCancelled);
    together.run_pairs(vitrine::AuditMode::kDeferred, arguments.tokens, overheads);
  }
  const Interval ratio = bootstrap_median_interval(ratios, 2000);
  const Interval overhead = bootstrap_median_interval(overheads, 2000);
  if (arguments.json) {
    nlohmann::ordered_json json;
    json["federation"] = spec.path;
    json["specialists"] = spec.specialists.size();
    json["threads"] = federation->summary().threads;
    json["base_tokens_per_second"] = median(base_speeds);
    json["tokens_per_second"] = median(speeds);
    json["ratio"] = {{"median", median(ratios)}, {"low", ratio.low}, {"high", ratio.high}};
    json["audit_overhead"] = {
        {"median", median(overheads)}, {"low", overhead.low}, {"high", overhead.high}};
    write_json(json);
    return 0;
  }
  write_out(fmt::format(
      "one model        {:>8.1f} tokens/s ({})\n"
      "{:>2} specialists   {:>8.1f} tokens/s ({}), {} thread{}\n"
      "ratio            {:>8.3f} [{:.3f}, {:.3f}]  median of {} pairs of {}-token slices, 95 % "
      "interval\n"
      "audit overhead   {:>+7.2f} % [{:+.2f}, {:+.2f}]  every share of every token recorded\n",
      median(base_speeds), spec.specialists[0].model, spec.specialists.size(), median(speeds),
      federation->combiner().name(), federation->summary().threads,
      federation->summary().threads == 1 ? "" : "s", median(ratios), ratio.low, ratio.high,
      arguments.pairs, arguments.tokens, 100 * median(overheads), 100 * overhead.low,
      100 * overhead.high));
  return 0;
}

}  // namespace

void add_bench_federation(CLI::App& bench, Command& command) {
  auto arguments = std::make_shared<BenchFederationArguments>();
  CLI::App* federation = bench.add_subcommand(
      "federation", "Measures decoding with several specialists beside one model");
  federation->add_option("FEDERATION", arguments->federation, "the federation file")->required();
  federation->add_option("--tokens", arguments->tokens, "of a slice")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  federation->add_option("--prefix", arguments->prefix, "tokens before it")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  federation->add_option("--pairs", arguments->pairs, "how many slices of each")
      ->check(CLI::Range(4, 1 << 16))
      ->capture_default_str();
  federation->add_flag("--json", arguments->json, "one JSON object instead of text");
  arguments->device.add_to(*federation);
  federation->callback(
      [arguments, &command] { command = [arguments] { return run_bench(*arguments); }; });
}

}  // namespace cli
