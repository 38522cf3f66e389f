// SPDX-License-Identifier: Apache-2.0
// vitrine bench speculate: what guesses are worth on a model and on prompts, each answer beside the
// same without; what passes of several tokens cost.
#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "bench.h"
#include "speculation_options.h"
#include "statistics.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kMaxPromptsBytes = size_t{64} << 20;
constexpr const char* kSpeculateCancelled = "bench speculate: cancelled before the end";

struct BenchSpeculateArguments {
  std::string model, prompts, costs_file;
  std::vector<std::string> candidates = {"ngram", "suffix", "auto"};
  std::vector<int> head_layers;
  int max_new_tokens = 128, max_drafts = 8, repeat = 3;
  float temperature = 0;
  bool cost = false, json = false;
  DeviceOptions device;
};

/// Sums up a candidate over all prompts.
struct CandidateRuns {
  std::string name;
  std::unique_ptr<vitrine::Drafter> heads;  // learn nothing; null: each answer has a new drafter
  std::vector<double> ratios;               // of each prompt the median of its pairs
  double plain_seconds = 0, seconds = 0;
  int64_t tokens = 0, identical = 0;
  vitrine::SpeculationCounts counts;
};

/// One line a prompt: a JSON string, or an object with "prompt".
std::vector<std::string> read_bench_prompts(const std::string& path) {
  std::istringstream lines(read_text_file(path, kMaxPromptsBytes));
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      const auto json = nlohmann::json::parse(line);
      prompts.push_back((json.is_object() ? json.at("prompt") : json).get<std::string>());
    } catch (const nlohmann::json::exception&) {
      refuse(fmt::format(
          "{}:{}: no prompt; expected one JSON string a line, or an object with a string 'prompt'",
          path, number));
    }
  }
  if (prompts.empty()) refuse(fmt::format("{} has no prompt; expected one a line", path));
  return prompts;
}

class SpeculateBench {
 public:
  SpeculateBench(vitrine::Engine& engine, const vitrine::Tokenizer& tokenizer,
                 const BenchSpeculateArguments& arguments, vitrine::PassCosts costs)
      : engine_(engine), tokenizer_(tokenizer), arguments_(arguments), costs_(std::move(costs)) {}

  void run(const std::vector<int32_t>& prompt, std::vector<CandidateRuns>& all) {
    vitrine::GenerateOptions options;
    options.max_new_tokens = arguments_.max_new_tokens;
    options.sampler.temperature = arguments_.temperature;
    options.sampler.seed = 1;
    for (CandidateRuns& candidate : all) {
      std::vector<double> pairs;
      for (int round = 0; round < arguments_.repeat; ++round) {
        stop_if_interrupted(kSpeculateCancelled);
        // A drafter that has seen no answer yet, and in turn first or second.
        const auto drafter =
            candidate.heads ? nullptr : make_drafter_of(candidate.name, engine_, tokenizer_);
        vitrine::GenerateOptions guessed = options;
        guessed.speculation.drafter = candidate.heads ? candidate.heads.get() : drafter.get();
        guessed.speculation.max_drafts = arguments_.max_drafts;
        if (candidate.name == "auto") guessed.speculation.costs = costs_;
        vitrine::GenerateResult plain, found;
        if (round % 2 == 0) plain = vitrine::generate(engine_, prompt, options);
        found = vitrine::generate(engine_, prompt, guessed);
        if (round % 2 == 1) plain = vitrine::generate(engine_, prompt, options);
        if (!found.speculation.problem.empty()) {
          throw vitrine::Error(vitrine::ErrorKind::kInternal, found.speculation.problem);
        }
        pairs.push_back(plain.decode_seconds / std::max(found.decode_seconds, 1e-9));
        if (round > 0) continue;
        candidate.identical += plain.tokens == found.tokens ? 1 : 0;
        candidate.tokens += std::ssize(found.tokens);
        candidate.plain_seconds += plain.decode_seconds;
        candidate.seconds += found.decode_seconds;
        candidate.counts += found.speculation;
      }
      candidate.ratios.push_back(median(pairs));
    }
  }

 private:
  vitrine::Engine& engine_;
  const vitrine::Tokenizer& tokenizer_;
  const BenchSpeculateArguments& arguments_;
  const vitrine::PassCosts costs_;
};

double tokens_a_pass(const CandidateRuns& runs) {
  return static_cast<double>(runs.tokens) /
         static_cast<double>(std::max<int64_t>(1, runs.counts.num_passes));
}

double upkeep_microseconds(const CandidateRuns& runs) {
  return 1e6 * runs.counts.draft_seconds / static_cast<double>(std::max<int64_t>(1, runs.tokens));
}

std::string speculate_table(const BenchSpeculateArguments& arguments, size_t prompts,
                            const std::vector<CandidateRuns>& all) {
  size_t width = 8;  // heads have a path
  for (const CandidateRuns& runs : all) width = std::max(width, runs.name.size() + 1);
  std::string text = fmt::format(
      "{}: {} prompts, {} tokens each at most, {} guesses a pass at most, temperature {}\n\n"
      "{:<{}}{:>8}{:>16}{:>12}{:>14}{:>14}{:>12}\n",
      arguments.model, prompts, arguments.max_new_tokens, arguments.max_drafts,
      arguments.temperature, "", width, "speed", "95 %", "accepted", "tokens/pass", "us a token",
      "identical");
  for (const CandidateRuns& runs : all) {
    const Interval interval = bootstrap_median_interval(runs.ratios);
    text += fmt::format(
        "{:<{}}{:>7.2f}x{:>16}{:>10.0f} %{:>14.2f}{:>14.1f}{:>12}\n", runs.name, width,
        median(runs.ratios), fmt::format("{:.2f} to {:.2f}", interval.low, interval.high),
        100 * runs.counts.draft_acceptance_rate(), tokens_a_pass(runs), upkeep_microseconds(runs),
        fmt::format("{} of {}", runs.identical, prompts));
  }
  return text + "\nspeed: decoding with guesses over the same without, the median of the prompts\n";
}

nlohmann::ordered_json speculate_report(const BenchSpeculateArguments& arguments,
                                        const std::vector<CandidateRuns>& all) {
  nlohmann::ordered_json json;
  json["model"] = arguments.model;
  json["max_new_tokens"] = arguments.max_new_tokens;
  json["draft_max"] = arguments.max_drafts;
  json["temperature"] = arguments.temperature;
  json["repeat"] = arguments.repeat;
  for (const CandidateRuns& runs : all) {
    const Interval interval = bootstrap_median_interval(runs.ratios);
    json["candidates"].push_back({{"name", runs.name},
                                  {"ratio", median(runs.ratios)},
                                  {"ratio_interval", {interval.low, interval.high}},
                                  {"ratios", runs.ratios},
                                  {"tokens", runs.tokens},
                                  {"seconds", runs.seconds},
                                  {"plain_seconds", runs.plain_seconds},
                                  {"tokens_per_pass", tokens_a_pass(runs)},
                                  {"upkeep_microseconds", upkeep_microseconds(runs)},
                                  {"identical", runs.identical},
                                  {"prompts", runs.ratios.size()},
                                  {"counts", speculation_json(runs.counts)}});
  }
  return json;
}

std::string costs_table(const std::string& model, const vitrine::PassCosts& costs) {
  std::string text =
      fmt::format("{}: passes of one sequence\n\n{:>8}{:>12}{:>10}\n", model, "tokens", "ms", "x");
  for (const vitrine::PassCost& cost : costs.all()) {
    text += fmt::format("{:>8}{:>12.3f}{:>10.2f}\n", cost.tokens, 1000 * cost.seconds,
                        costs.of(cost.tokens));
  }
  return text;
}

/// Opens heads among the candidates, and asks for the features that they read.
std::vector<CandidateRuns> open_candidates(const BenchSpeculateArguments& arguments,
                                           vitrine::EngineOptions& options) {
  std::vector<CandidateRuns> all;
  for (const std::string& name : arguments.candidates) {
    CandidateRuns& candidate = all.emplace_back();
    candidate.name = name;
    if (!arguments.cost) {
      candidate.heads = open_heads_of(name, arguments.model, arguments.head_layers);
    }
    if (candidate.heads == nullptr) continue;
    const auto read = candidate.heads->feature_layers();
    const std::vector<int> layers(read.begin(), read.end());
    if (!options.feature_layers.empty() && options.feature_layers != layers) {
      refuse(
          fmt::format("--candidates: {} reads other layers than heads before it; expected heads "
                      "of the same layers, or one after another",
                      name));
    }
    options.feature_layers = layers;
  }
  if (!arguments.head_layers.empty() && options.feature_layers.empty()) {
    refuse("--head-layers says what heads read; expected heads among --candidates");
  }
  return all;
}

int run_bench_speculate(const BenchSpeculateArguments& arguments) {
  if (arguments.prompts.empty() == !arguments.cost) {
    refuse("bench speculate measures answers or passes; expected --prompts FILE, or --cost");
  }
  for (const std::string& name : arguments.candidates) {
    if (name != "auto") check_drafter_form(name);
  }
  std::vector<std::vector<int32_t>> prompts;
  vitrine::EngineOptions options = arguments.device.engine_options();
  std::vector<CandidateRuns> all = open_candidates(arguments, options);
  options.max_context = 256;
  options.max_sequences = 1;
  const vitrine::Checkpoint checkpoint = open_model(arguments.model);
  const vitrine::ModelConfig config = vitrine::parse_model_config(checkpoint);
  const vitrine::Tokenizer tokenizer = vitrine::open_tokenizer(checkpoint, config);
  if (!arguments.cost) {
    size_t longest = 0;
    for (const std::string& text : read_bench_prompts(arguments.prompts)) {
      prompts.push_back(tokenizer.encode(text, true));
      if (prompts.back().empty()) refuse("a prompt has no token; expected text in each");
      longest = std::max(longest, prompts.back().size());
    }
    options.max_context = static_cast<int>(longest) + arguments.max_new_tokens;
  }
  options.max_context =
      static_cast<int>(std::min<int64_t>(options.max_context, config.max_position_embeddings));
  options.max_step_tokens = std::min(512, options.max_context);
  options.max_logit_rows = std::min(std::max(arguments.max_drafts + 1, 16), options.max_context);
  options.max_step_tokens = std::max(options.max_step_tokens, options.max_logit_rows);
  options.audit_mode = vitrine::AuditMode::kNone;
  const auto engine = vitrine::Engine::load(arguments.model, options);
  catch_interrupts();
  const vitrine::PassCosts costs = arguments.costs_file.empty()
                                       ? vitrine::measure_pass_costs(*engine, 16, 9)
                                       : read_pass_costs(arguments.costs_file);
  if (arguments.cost) {
    nlohmann::ordered_json json;
    json["model"] = arguments.model;
    json["threads"] = engine->summary().threads;
    json["isa"] = engine->summary().isa;
    json["costs"] = pass_costs_json(costs);
    if (arguments.json) {
      write_json(json);
    } else {
      write_out(costs_table(arguments.model, costs));
    }
    return 0;
  }
  SpeculateBench bench(*engine, tokenizer, arguments, costs);
  for (const std::vector<int32_t>& prompt : prompts) bench.run(prompt, all);
  if (arguments.json) {
    write_json(speculate_report(arguments, all));
  } else {
    write_out(speculate_table(arguments, prompts.size(), all));
  }
  const bool is_same = std::ranges::all_of(
      all, [&](const CandidateRuns& runs) { return runs.identical == std::ssize(prompts); });
  return is_same ? 0 : 1;
}

}  // namespace

void add_bench_speculate(CLI::App& bench, Command& command) {
  auto arguments = std::make_shared<BenchSpeculateArguments>();
  CLI::App* speculate = bench.add_subcommand(
      "speculate", "What guessing ahead is worth: speed beside the same answers without");
  add_model(*speculate, arguments->model);
  speculate->add_option("--prompts", arguments->prompts,
                        "a JSON string a line, or an object with a string 'prompt'");
  speculate
      ->add_option("--candidates", arguments->candidates,
                   "who guesses, with commas: ngram, suffix, draft=MODEL, auto, or heads as "
                   "--speculate of generate has them")
      ->delimiter(',')
      ->capture_default_str();
  add_head_layers(*speculate, arguments->head_layers);
  speculate->add_option("-n,--max-new-tokens", arguments->max_new_tokens, "tokens of an answer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  speculate->add_option("--draft-max", arguments->max_drafts, "guesses of a pass, at most")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  speculate->add_option("--draft-costs", arguments->costs_file,
                        "what passes cost, as --cost --json writes it, for auto");
  speculate->add_option("--temperature", arguments->temperature, "of the sampler; 0: greedy")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  speculate->add_option("--repeat", arguments->repeat, "pairs of each prompt")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  speculate->add_flag("--cost", arguments->cost,
                      "what a pass of 1, 2, 3, 4, 6, 8, 12, 16 tokens of one sequence costs");
  speculate->add_flag("--json", arguments->json, "one JSON object instead of a table");
  arguments->device.add_to(*speculate);
  speculate->callback(
      [arguments, &command] { command = [arguments] { return run_bench_speculate(*arguments); }; });
}

}  // namespace cli
