// SPDX-License-Identifier: Apache-2.0
// vitrine bench audit: what the recorder costs, with its uncertainty.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "bench.h"
#include "slices.h"
#include "statistics.h"
#include "vitrine/audit_log.h"

namespace cli {

namespace {

using vitrine::AuditMode;

constexpr int kPrefixTokens = 32;
// A log's thread looks for work every 16 ms at least; what is left of a long run must not slow the
// next. Beside short runs it works all the time, as much in one mode's as in another's.
constexpr auto kSettleTime = std::chrono::milliseconds(25);
constexpr int kLongSlice = 500;  // tokens

struct BenchAuditArguments {
  std::string model, out, log;
  bool attribution = false;
  int tokens = 1000, trials = 5, slices = 200, slice_tokens = 50;
  DeviceOptions device;
};

struct Trial {
  AuditMode mode;
  int tokens;
  double seconds;
};

struct Overhead {
  AuditMode mode = AuditMode::kDeferred;
  double median = 0;
  Interval interval;
  size_t slices = 0;
};

std::string mode_name(AuditMode mode) {
  if (mode == AuditMode::kNone) return "none";
  return mode == AuditMode::kNaive ? "naive" : "deferred";
}

constexpr const char* kAuditCancelled =
    "bench audit: cancelled before the end; nothing was written";

/// Those that the engine can record in, but for none.
std::vector<AuditMode> audited_modes(vitrine::Engine& engine) {
  try {
    engine.set_audit_mode(AuditMode::kNaive);
  } catch (const vitrine::Error& error) {
    if (error.kind() != vitrine::ErrorKind::kUnsupported) throw;
    return {AuditMode::kDeferred};
  }
  engine.set_audit_mode(AuditMode::kNone);
  return {AuditMode::kNaive, AuditMode::kDeferred};
}

std::vector<Trial> run_trials(SliceRunner& runner, const BenchAuditArguments& arguments,
                              std::vector<AuditMode> modes) {
  modes.insert(modes.begin(), AuditMode::kNone);
  std::vector<Trial> trials;
  for (int trial = 0; trial < arguments.trials; ++trial) {
    for (size_t place = 0; place < modes.size(); ++place) {
      stop_if_interrupted(kAuditCancelled);
      // Each round begins with another mode, so that none is always the first.
      const AuditMode mode = modes[(place + static_cast<size_t>(trial)) % modes.size()];
      trials.push_back({mode, arguments.tokens, runner.run(mode, arguments.tokens)});
    }
  }
  return trials;
}

/// ABBA quadruples of the modes by turns.
std::vector<Overhead> run_slices(SliceRunner& runner, const BenchAuditArguments& arguments,
                                 const std::vector<AuditMode>& modes) {
  std::vector<std::vector<double>> overheads(modes.size());
  while (overheads[0].size() < static_cast<size_t>(arguments.slices)) {
    for (size_t index = 0; index < modes.size(); ++index) {
      stop_if_interrupted(kAuditCancelled);
      runner.run_pairs(modes[index], arguments.slice_tokens, overheads[index]);
    }
  }
  std::vector<Overhead> result;
  for (size_t index = 0; index < modes.size(); ++index) {
    result.push_back({modes[index], median(overheads[index]),
                      bootstrap_median_interval(overheads[index]), overheads[index].size()});
  }
  return result;
}

std::vector<double> speeds_of(const std::vector<Trial>& trials, AuditMode mode) {
  std::vector<double> speeds;
  for (const Trial& trial : trials) {
    if (trial.mode == mode) speeds.push_back(trial.tokens / trial.seconds);
  }
  return speeds;
}

std::string bench_audit_table(const std::vector<Trial>& trials,
                              const std::vector<Overhead>& overheads) {
  std::string text = fmt::format("{:<10}{:>8}{:>10}{:>12}{:>11}\n", "trial", "tokens", "seconds",
                                 "tokens/s", "overhead");
  const double none = median(speeds_of(trials, AuditMode::kNone));
  for (const Trial& trial : trials) {
    const double speed = trial.tokens / trial.seconds;
    text += fmt::format("{:<10}{:>8}{:>10.3f}{:>12.1f}{:>11}\n", mode_name(trial.mode),
                        trial.tokens, trial.seconds, speed,
                        trial.mode == AuditMode::kNone
                            ? std::string("-")
                            : fmt::format("{:+.2f} %", 100 * (none - speed) / none));
  }
  text += fmt::format("\n{:<10}{:>12}{:>18}{:>22}{:>8}  {}\n", "mode", "tokens/s",
                      "paired overhead", "95 % interval", "slices", "verdict");
  text += fmt::format("{:<10}{:>12.1f}\n", "none", none);
  for (const Overhead& overhead : overheads) {
    text += fmt::format("{:<10}{:>12.1f}{:>16.3f} %{:>22}{:>8}  {}\n", mode_name(overhead.mode),
                        median(speeds_of(trials, overhead.mode)), 100 * overhead.median,
                        fmt::format("[{:+.3f}, {:+.3f}] %", 100 * overhead.interval.low,
                                    100 * overhead.interval.high),
                        overhead.slices, overhead_verdict(overhead.interval));
  }
  return text;
}

nlohmann::ordered_json bench_audit_report(const BenchAuditArguments& arguments,
                                          const vitrine::ModelSummary& model,
                                          const std::vector<Trial>& trials,
                                          const std::vector<Overhead>& overheads) {
  nlohmann::ordered_json json;
  json["model"] = arguments.model;
  json["device"] = model.device;
  json["threads"] = model.threads;
  if (arguments.attribution) json["attribution"] = true;
  json["trials"] = nlohmann::ordered_json::array();
  for (const Trial& trial : trials) {
    nlohmann::ordered_json entry;
    entry["mode"] = mode_name(trial.mode);
    entry["tokens"] = trial.tokens;
    entry["seconds"] = trial.seconds;
    json["trials"].push_back(std::move(entry));
  }
  nlohmann::ordered_json verdict;
  for (const Overhead& overhead : overheads) {
    nlohmann::ordered_json entry;
    entry["median"] = overhead.median;
    entry["low"] = overhead.interval.low;
    entry["high"] = overhead.interval.high;
    entry["slices"] = overhead.slices;
    json["overhead"][mode_name(overhead.mode)] = std::move(entry);
    verdict[mode_name(overhead.mode)] = std::string(overhead_verdict(overhead.interval));
  }
  json["verdict"] = std::move(verdict);
  return json;
}

int run_bench_audit(const BenchAuditArguments& arguments) {
  vitrine::EngineOptions options = arguments.device.engine_options();
  if (!arguments.out.empty()) require_output_folder("--out", arguments.out);
  vitrine::ModelFacts config;
  {
    const vitrine::Checkpoint checkpoint = open_model(arguments.model);
    config = vitrine::read_model_facts(checkpoint);
  }
  const int64_t wanted =
      kPrefixTokens + std::max({arguments.tokens, arguments.slice_tokens, kTextTokens}) + 1;
  const int64_t context = std::min(config.max_position_embeddings, wanted);
  if (context < 2) refuse(arguments.model + ": a context of 1 position; expected at least 2");
  options.max_context = static_cast<int>(context);
  options.max_step_tokens = kPrefixTokens;
  options.attribution = arguments.attribution;
  const auto engine = vitrine::Engine::load(arguments.model, options);
  catch_interrupts();
  // As `generate` without --audit: records go to a bounded ring. Else to a sealed log.
  vitrine::SlabRing ring(size_t{4} << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  std::unique_ptr<vitrine::VtrLog> log;
  if (!arguments.log.empty()) {
    vitrine::LogHeader header;
    header.vocab_size = static_cast<int32_t>(config.vocab_size);
    log = std::make_unique<vitrine::VtrLog>(arguments.log, header);
  }
  engine->set_audit_sink(log ? &log->sink() : &ring);
  std::vector<Trial> trials;
  std::vector<Overhead> overheads;
  const std::vector<AuditMode> modes = audited_modes(*engine);
  {
    const int64_t prefix = std::clamp<int64_t>(context / 2, 1, kPrefixTokens);
    SliceRunner runner(*engine, spread_ids(config.vocab_size, 0, prefix), context);
    if (log && arguments.slice_tokens >= kLongSlice) runner.set_settle_time(kSettleTime);
    runner.run(AuditMode::kNone, arguments.slice_tokens);  // warm
    for (const AuditMode mode : modes) runner.run(mode, arguments.slice_tokens);
    trials = run_trials(runner, arguments, modes);
    overheads = run_slices(runner, arguments, modes);
  }
  engine->set_audit_sink(nullptr);
  if (log) log->finish("bench");
  const vitrine::ModelSummary& model = engine->summary();
  write_out(fmt::format("{} on {} ({} kernels, {}), {} threads\n\n{}", arguments.model,
                        model.device, model.kernels, model.isa, model.threads,
                        bench_audit_table(trials, overheads)));
  if (!arguments.out.empty()) {
    const std::string text =
        bench_audit_report(arguments, engine->summary(), trials, overheads).dump(2) + "\n";
    vitrine::write_file_atomically(arguments.out, text);
  }
  return 0;
}

}  // namespace

void add_bench_audit(CLI::App& bench, Command& command) {
  auto arguments = std::make_shared<BenchAuditArguments>();
  CLI::App* audit =
      bench.add_subcommand("audit", "The recorder's cost: none, naive and deferred, interleaved");
  add_model(*audit, arguments->model);
  audit->add_option("--tokens", arguments->tokens, "greedy tokens of one trial")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  audit->add_option("--trials", arguments->trials, "trials of each mode")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  audit->add_option("--slices", arguments->slices, "paired slices of each audited mode")
      ->check(CLI::Range(2, 1000000))
      ->capture_default_str();
  audit->add_option("--slice-tokens", arguments->slice_tokens, "tokens of one slice")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  audit->add_flag("--attribution", arguments->attribution,
                  "the audited modes attribute each token's logit too");
  audit
      ->add_option("--log", arguments->log,
                   "the records go to this sealed log (.vtr) instead of memory: with "
                   "--slice-tokens 500 or more its thread's work counts too, with few it falls on "
                   "all modes alike and what counts is the step's own")
      ->check(not_empty());
  audit->add_option("--out", arguments->out, "JSON file for the result")->check(not_empty());
  arguments->device.add_to(*audit);
  audit->callback(
      [arguments, &command] { command = [arguments] { return run_bench_audit(*arguments); }; });
}

}  // namespace cli
