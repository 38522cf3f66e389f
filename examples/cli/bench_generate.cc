// SPDX-License-Identifier: Apache-2.0
// vitrine bench generate: speed of prefill and decode, and how much of the memory's speed it uses.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <span>

#include "bench.h"
#include "bench_tests.h"
#include "lora_options.h"
#include "statistics.h"

namespace cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kBenchGenerateRingBytes = size_t{4} << 20;
constexpr double kProbeSeconds = 0.5;
constexpr int kLogitRows = 64;  // of a step, as an evaluation of texts has them

struct BenchGenerateArguments {
  std::string model, audit = "deferred";
  BenchTests tests;
  int prompt = 256, tokens = 64, depth = 0, repeat = 5, step_tokens = 0;
  std::vector<int> batches;  // sequences that decode side by side, each in turn
  bool goes_on = false, json = false, all_logits = false;
  DeviceOptions device;
};

struct Speeds {
  std::vector<double> prefill, decode;       // tokens a second
  std::vector<std::vector<double>> batches;  // [batches] the same, of all sequences together
  // [batches] tokens a second where each sequence takes what is chosen for it, without
  // StepInput::goes_on and with it
  std::vector<std::vector<double>> chosen, going_on;
};

struct Loading {
  double load_seconds = 0;         // until the engine is there
  double first_token_seconds = 0;  // from the same start, until the token after a prompt of one
};

constexpr const char* kGenerateCancelled = "bench generate: cancelled before the end";

/// What a sequence takes next: the same ids whatever the model chooses, which it does all the same
/// (runs are comparable, and the experts change from token to token as in a text); what was chosen;
/// or that, and each step says so before.
enum class Next { kGiven, kChosen, kGoesOn };

class Runner {
 public:
  Runner(vitrine::Engine& engine, const BenchGenerateArguments& arguments, int step_tokens)
      : engine_(engine), arguments_(arguments), step_tokens_(step_tokens) {
    const int64_t count = arguments.depth + std::max(arguments.prompt, arguments.tokens);
    for (int i = 0; i < engine.options().max_sequences; ++i) {
      stop_if_interrupted(kGenerateCancelled);
      // Each has its own ids, so that a batch meets as many experts as one of so many texts. An odd
      // distance: vocabularies are often a power of two, which ids repeat after.
      sequences_.push_back({engine.create_sequence(),
                            spread_ids(engine.summary().vocab_size, i * (count | 1), count)});
    }
  }
  ~Runner() {
    for (const Sequence& sequence : sequences_) engine_.release(sequence.id);
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  void first_token() { feed(sequences_[0], 1, 1); }

  /// The context that comes before what is measured, then one round that touches all memory.
  void prepare(Speeds& speeds) {
    for (const Sequence& sequence : sequences_) {
      stop_if_interrupted(kGenerateCancelled);
      engine_.truncate(sequence.id, 0);
      if (arguments_.depth > 0) feed(sequence, arguments_.depth, step_tokens_);
    }
    for (auto* of : {&speeds.batches, &speeds.chosen, &speeds.going_on}) {
      of->resize(arguments_.batches.size());
    }
    measure(speeds);
    speeds.prefill.clear();
    speeds.decode.clear();
    for (auto* of : {&speeds.batches, &speeds.chosen, &speeds.going_on}) {
      for (std::vector<double>& values : *of) values.clear();
    }
  }

  void measure(Speeds& speeds) {
    rewind(1);
    speeds.prefill.push_back(arguments_.prompt /
                             feed(sequences_[0], arguments_.prompt, step_tokens_));
    rewind(1);
    speeds.decode.push_back(arguments_.tokens / feed(sequences_[0], arguments_.tokens, 1));
    for (size_t i = 0; i < arguments_.batches.size(); ++i) {
      const int batch = arguments_.batches[i];
      speeds.batches[i].push_back(decode(batch, Next::kGiven));
      if (!arguments_.goes_on) continue;
      speeds.chosen[i].push_back(decode(batch, Next::kChosen));
      speeds.going_on[i].push_back(decode(batch, Next::kGoesOn));
    }
  }

 private:
  struct Sequence {
    vitrine::SequenceId id;
    std::vector<int32_t> ids;
  };

  void rewind(int count) {
    stop_if_interrupted(kGenerateCancelled);
    for (const Sequence& sequence : std::span(sequences_).first(static_cast<size_t>(count))) {
      engine_.truncate(sequence.id, arguments_.depth);
    }
  }

  /// Seconds for the next `count` ids, `at_once` in a step; a row of logits for the last of each
  /// step that ends the ids or has one, or for all of them where that is asked for.
  double feed(const Sequence& sequence, int count, int at_once) {
    const auto first = static_cast<size_t>(engine_.length(sequence.id));
    std::span<const int32_t> rest =
        std::span<const int32_t>(sequence.ids).subspan(first, static_cast<size_t>(count));
    const Clock::time_point start = Clock::now();
    while (!rest.empty()) {
      vitrine::StepInput input;
      input.sequence = sequence.id;
      input.tokens = rest.first(std::min(rest.size(), static_cast<size_t>(at_once)));
      rest = rest.subspan(input.tokens.size());
      input.rows = arguments_.all_logits          ? vitrine::StepInput::Rows::kAll
                   : rest.empty() || at_once == 1 ? vitrine::StepInput::Rows::kLast
                                                  : vitrine::StepInput::Rows::kNone;
      engine_.step({&input, 1});
    }
    return seconds_since(start);
  }

  /// Tokens a second of the first `batch` sequences, one each in a step.
  double decode(int batch, Next next) {
    rewind(batch);
    std::vector<vitrine::StepInput> inputs(static_cast<size_t>(batch));
    std::vector<int32_t> ids(inputs.size());
    const auto first = static_cast<size_t>(arguments_.depth);
    const size_t end = first + static_cast<size_t>(arguments_.tokens);
    const Clock::time_point start = Clock::now();
    for (size_t token = first; token < end; ++token) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (next == Next::kGiven || token == first) ids[i] = sequences_[i].ids[token];
        inputs[i].sequence = sequences_[i].id;
        inputs[i].tokens = {&ids[i], 1};
        inputs[i].goes_on = next == Next::kGoesOn && token + 1 < end;
      }
      const auto outputs = engine_.step(inputs);
      for (size_t i = 0; i < inputs.size(); ++i) ids[i] = outputs[i].token;
    }
    return batch * arguments_.tokens / seconds_since(start);
  }

  vitrine::Engine& engine_;
  const BenchGenerateArguments& arguments_;
  int step_tokens_;
  std::vector<Sequence> sequences_;
};

/// The largest resident size so far, in bytes; none where the system does not tell. (getrusage()
/// would count what the process was before it became this program.)
std::optional<uint64_t> peak_rss() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    unsigned long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "VmHWM: %llu", &kilobytes) == 1) return kilobytes * 1024;
  }
  return std::nullopt;
}

/// Ratios of pairs.
std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> all;
  for (size_t i = 0; i < of.size(); ++i) all.push_back(of[i] / to[i]);
  return all;
}

double lowest(const std::vector<double>& values) { return *std::ranges::min_element(values); }
double highest(const std::vector<double>& values) { return *std::ranges::max_element(values); }

std::string bench_generate_table(const BenchGenerateArguments& arguments,
                                 const vitrine::ModelSummary& model, const Speeds& speeds,
                                 const Loading& loading, std::optional<double> bandwidth,
                                 std::optional<uint64_t> peak) {
  std::string text =
      fmt::format("{} on {} ({} kernels, {}), {} threads, recorder {}\n\n", arguments.model,
                  model.device, model.kernels, model.isa, model.threads, arguments.audit);
  const auto line = [&](const std::string& name, int tokens, const std::vector<double>& values) {
    text += fmt::format("{:<10}{:>10.1f} tokens/s  ({} tokens{}; median of {}, {:.1f} to {:.1f})\n",
                        name, median(values), tokens,
                        arguments.depth > 0 ? fmt::format(" after {}", arguments.depth) : "",
                        values.size(), lowest(values), highest(values));
  };
  line("prefill", arguments.prompt, speeds.prefill);
  line("decode", arguments.tokens, speeds.decode);
  for (size_t i = 0; i < arguments.batches.size(); ++i) {
    const int batch = arguments.batches[i];
    const int tokens = batch * arguments.tokens;
    line(fmt::format("decode {}x", batch), tokens, speeds.batches[i]);
    if (!arguments.goes_on) continue;
    line(fmt::format("chosen {}x", batch), tokens, speeds.chosen[i]);
    line(fmt::format("ahead {}x", batch), tokens, speeds.going_on[i]);
    text += fmt::format("{:<10}{:>10.3f} of the tokens/s without a step ahead, median of pairs\n",
                        "", median(ratios(speeds.going_on[i], speeds.chosen[i])));
  }
  text += fmt::format("{:<10}{:>10} a token", "reads", format_bytes(model.bytes_per_token));
  if (bandwidth) {
    const double used = median(speeds.decode) * static_cast<double>(model.bytes_per_token);
    text += fmt::format(": {:.1f} of {:.1f} GB/s that {} can read, {:.0f} %", used / 1e9,
                        *bandwidth / 1e9, model.device == "cpu" ? "these threads" : "the device",
                        100 * used / *bandwidth);
  }
  text += fmt::format("\n{:<10}{:>10.2f} s; first token {:.2f} s after the start\n", "load",
                      loading.load_seconds, loading.first_token_seconds);
  if (peak) text += fmt::format("{:<10}{:>10} at most\n", "memory", format_bytes(*peak));
  return text;
}

template <typename T>
nlohmann::ordered_json or_null(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json bench_generate_report(const BenchGenerateArguments& arguments,
                                             const vitrine::Engine& engine, int step_tokens,
                                             const Speeds& speeds, const Loading& loading,
                                             std::optional<double> bandwidth,
                                             std::optional<uint64_t> peak) {
  const vitrine::ModelSummary& model = engine.summary();
  std::optional<double> share;
  if (bandwidth) {
    share = median(speeds.decode) * static_cast<double>(model.bytes_per_token) / *bandwidth;
  }
  nlohmann::ordered_json json;
  json["prefill_tps"] = median(speeds.prefill);
  json["decode_tps"] = median(speeds.decode);
  json["bytes_per_token"] = model.bytes_per_token;
  json["read_bandwidth"] = or_null(bandwidth);
  json["bandwidth_share"] = or_null(share);
  json["load_seconds"] = loading.load_seconds;
  json["peak_rss"] = or_null(peak);
  json["prefill_tps_range"] = {lowest(speeds.prefill), highest(speeds.prefill)};
  json["decode_tps_range"] = {lowest(speeds.decode), highest(speeds.decode)};
  json["first_token_seconds"] = loading.first_token_seconds;
  json["prompt_tokens"] = arguments.prompt;
  json["generated_tokens"] = arguments.tokens;
  json["depth"] = arguments.depth;
  json["step_tokens"] = step_tokens;
  json["repeat"] = arguments.repeat;
  json["audit"] = arguments.audit;
  json["model"] = arguments.model;
  json["device"] = model.device;
  json["kernels"] = model.kernels;
  json["isa"] = model.isa;
  json["kv_type"] = model.kv_codec;
  json["threads"] = model.threads;
  json["mmap"] = arguments.device.mmap;
  json["expert_cache"] = arguments.device.expert_cache;
  if (const vitrine::ExpertCacheStats cache = engine.expert_cache(); cache.slots > 0) {
    json["expert_cache_use"] = {
        {"slots", cache.slots},           {"experts", cache.experts},
        {"slot_bytes", cache.slot_bytes}, {"hits", cache.hits},
        {"misses", cache.misses},         {"bytes_read", cache.bytes_read},
        {"guesses", cache.guesses},       {"right_guesses", cache.right_guesses},
        {"read_ahead", cache.read_ahead}, {"read_ahead_used", cache.read_ahead_used}};
  }
  for (size_t i = 0; i < arguments.batches.size(); ++i) {
    const std::vector<double>& values = speeds.batches[i];
    json["batches"].push_back({{"batch", arguments.batches[i]},
                               {"decode_tps", median(values)},
                               {"decode_tps_range", {lowest(values), highest(values)}}});
    if (!arguments.goes_on) continue;
    nlohmann::ordered_json& batch = json["batches"].back();
    batch["chosen_tps"] = median(speeds.chosen[i]);
    batch["ahead_tps"] = median(speeds.going_on[i]);
    batch["ahead_ratio"] = median(ratios(speeds.going_on[i], speeds.chosen[i]));
  }
  return json;
}

int run_bench_generate(const BenchGenerateArguments& arguments) {
  const Clock::time_point start = Clock::now();
  vitrine::EngineOptions options = arguments.device.engine_options();
  const int64_t context = int64_t{arguments.depth} + std::max(arguments.prompt, arguments.tokens);
  {
    const vitrine::ModelFacts config = vitrine::read_model_facts(open_model(arguments.model));
    if (context > config.max_position_embeddings) {
      refuse(
          fmt::format("bench generate asks for {} positions and the context of {} holds {}; "
                      "expected a shorter prompt (-p), fewer tokens (-n) or less --depth",
                      context, arguments.model, config.max_position_embeddings));
    }
  }
  options.max_context = static_cast<int>(context);
  if (arguments.step_tokens > 0) options.max_step_tokens = arguments.step_tokens;
  if (arguments.all_logits) {
    options.keep_logits = true;
    options.max_step_tokens = std::min(options.max_step_tokens, kLogitRows);
  }
  const int most = std::max(arguments.prompt, arguments.depth);
  const int step_tokens = std::min(options.max_step_tokens, most);
  const auto widest = std::ranges::max_element(arguments.batches);
  options.max_sequences = widest == arguments.batches.end() ? 1 : *widest;
  options.max_step_tokens = std::max(step_tokens, options.max_sequences);
  if (arguments.all_logits) options.max_logit_rows = options.max_step_tokens;
  const bool records = arguments.audit != "none";
  options.audit_mode = records ? vitrine::AuditMode::kDeferred : vitrine::AuditMode::kNone;
  // As `generate` without --audit: records go to a bounded ring.
  vitrine::SlabRing ring(kBenchGenerateRingBytes, vitrine::SlabRing::WhenFull::kOverwrite);
  const auto engine = vitrine::Engine::load(arguments.model, options);
  Loading loading;
  loading.load_seconds = seconds_since(start);
  catch_interrupts();
  if (records) engine->set_audit_sink(&ring);
  Speeds speeds;
  {
    Runner runner(*engine, arguments, step_tokens);
    runner.first_token();
    loading.first_token_seconds = seconds_since(start);
    runner.prepare(speeds);
    for (int round = 0; round < arguments.repeat; ++round) runner.measure(speeds);
  }
  engine->set_audit_sink(nullptr);
  const std::optional<double> bandwidth = engine->measure_read_bandwidth(kProbeSeconds);
  const std::optional<uint64_t> peak = peak_rss();
  if (arguments.json) {
    write_json(
        bench_generate_report(arguments, *engine, step_tokens, speeds, loading, bandwidth, peak));
  } else {
    write_out(bench_generate_table(arguments, engine->summary(), speeds, loading, bandwidth, peak));
  }
  return 0;
}

}  // namespace

void add_bench_generate(CLI::App& bench, Command& command) {
  auto arguments = std::make_shared<BenchGenerateArguments>();
  CLI::App* generate = bench.add_subcommand(
      "generate", "Speed of prefill and decode, and the share of the memory's speed it uses");
  add_model(*generate, arguments->model);
  arguments->tests.add_to(*generate);
  generate->add_option("--repeat", arguments->repeat, "measurements of each")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  generate
      ->add_option("--step-tokens", arguments->step_tokens,
                   "tokens of the prompt in one step (default: the engine's)")
      ->check(CLI::Range(1, 16384));
  generate
      ->add_option("--batch", arguments->batches,
                   "numbers of sequences whose decoding side by side is measured too, with commas")
      ->check(CLI::Range(1, 4096))
      ->delimiter(',');
  generate->add_flag("--goes-on", arguments->goes_on,
                     "for each --batch also decodes what is chosen, with and without telling the "
                     "engine that it will: a device may start the next step early then");
  generate->add_flag("--all-logits", arguments->all_logits,
                     "the logits of each token of a prompt come back, as for a text's perplexity; "
                     "64 tokens in a step at most");
  generate->add_option("--audit", arguments->audit, "the recorder: none or deferred")
      ->check(CLI::IsMember({"none", "deferred"}))
      ->capture_default_str();
  generate->add_flag("--json", arguments->json, "one JSON object instead of a table");
  add_lora(*generate, arguments->device.lora);
  arguments->device.add_to(*generate);
  generate->callback([arguments, &command] {
    command = [arguments] {
      BenchTests& tests = arguments->tests;
      if (!tests.is_single()) {
        tests.refuse_beside({{arguments->json, "--json"},
                             {!arguments->batches.empty(), "--batch"},
                             {arguments->goes_on, "--goes-on"},
                             {arguments->all_logits, "--all-logits"}});
        tests.model = arguments->model;
        tests.repeat = arguments->repeat;
        tests.step_tokens = arguments->step_tokens;
        tests.records = arguments->audit != "none";
        return run_bench_tests(tests, arguments->device);
      }
      arguments->prompt = tests.prompts[0];
      arguments->tokens = tests.generated[0];
      arguments->depth = tests.depths[0];
      return run_bench_generate(*arguments);
    };
  });
}

}  // namespace cli
