// SPDX-License-Identifier: Apache-2.0
// vitrine bench speculate: what guesses are worth on a model and on prompts, each answer beside the
// same without; what passes of several tokens cost.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "bench.h"
#include "constraint_options.h"
#include "recorded_drafter.h"
#include "speculate_runs.h"
#include "speculation_options.h"
#include "statistics.h"

namespace cli {

namespace {

constexpr const char* kSpeculateCancelled = "bench speculate: cancelled before the end";
constexpr std::string_view kAnswerSchema = R"({"type": "object", "properties": {
  "title": {"type": "string", "maxLength": 40}, "words": {"type": "integer"},
  "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 4}},
  "required": ["title", "words", "tags"], "additionalProperties": false})";

class SpeculateBench {
 public:
  SpeculateBench(vitrine::Engine& engine, const vitrine::Tokenizer& tokenizer,
                 const BenchSpeculateArguments& arguments, vitrine::PassCosts costs,
                 std::vector<int32_t> end_ids)
      : engine_(engine),
        tokenizer_(tokenizer),
        arguments_(arguments),
        costs_(std::move(costs)),
        end_ids_(std::move(end_ids)) {
    for (const std::string& kind : arguments.kinds) {
      if (kind != "schema" || grammar_) continue;
      grammar_ = vitrine::Grammar::json_schema(
          vitrine::make_token_table(tokenizer, engine.summary().vocab_size,
                                    engine.summary().eos_token_ids),
          kAnswerSchema);
    }
  }

  /// All prompts in turn.
  CandidateRuns run(DraftCandidate& candidate, const AnswerKind& kind,
                    const std::vector<std::vector<int32_t>>& prompts) {
    CandidateRuns runs;
    runs.name = candidate.name;
    runs.kind = kind.name;
    for (const std::vector<int32_t>& prompt : prompts) run(candidate, kind, prompt, runs);
    return runs;
  }

 private:
  void run(DraftCandidate& candidate, const AnswerKind& kind, const std::vector<int32_t>& prompt,
           CandidateRuns& runs) {
    std::vector<double> pairs;
    std::vector<int32_t> record;
    double plain_seconds = 0, seconds = 0;
    bool is_same = true, is_short = false;
    for (int round = 0; round < arguments_.repeat; ++round) {
      stop_if_interrupted(kSpeculateCancelled);
      // In turn first or second.
      vitrine::GenerateResult plain, found;
      if (round % 2 == 0) plain = answer(kind, prompt, {});
      if (round == 0) record = plain.tokens;
      const auto own = make_own(candidate, record);
      vitrine::SpeculationOptions guessed;
      guessed.drafter = candidate.kept ? candidate.kept.get() : own.get();
      guessed.max_drafts =
          candidate.right_run > 0 ? candidate.right_run + 1 : arguments_.max_drafts;
      guessed.max_depth = arguments_.max_depth;
      const bool is_gated = !arguments_.is_ungated || candidate.name == "auto";
      if (is_gated && candidate.right_run == 0) add_gate(*guessed.drafter, costs_, guessed);
      found = answer(kind, prompt, guessed);
      if (round % 2 == 1) plain = answer(kind, prompt, {});
      if (!found.speculation.problem.empty()) {
        throw vitrine::Error(vitrine::ErrorKind::kInternal, found.speculation.problem);
      }
      pairs.push_back(plain.decode_seconds / std::max(found.decode_seconds, 1e-9));
      is_same = is_same && plain.tokens == found.tokens;
      plain_seconds += plain.decode_seconds;
      seconds += found.decode_seconds;
      const int64_t count = std::ssize(found.tokens);
      is_short = count < kFewestTokens;
      (is_short ? runs.short_tokens : runs.tokens) += count;
      (is_short ? runs.short_counts : runs.counts) += found.speculation;
      runs.answers += is_short ? 0 : 1;
      if (round > 0) continue;
      runs.first_tokens += count;
      runs.different_tokens += std::ssize(std::set(found.tokens.begin(), found.tokens.end()));
    }
    ++runs.prompts;
    runs.identical += is_same ? 1 : 0;
    if (is_short) {
      ++runs.short_answers;
      runs.short_plain_seconds += plain_seconds;
      runs.short_seconds += seconds;
      return;
    }
    runs.plain_seconds.push_back(plain_seconds);
    runs.seconds.push_back(seconds);
    runs.ratios.push_back(median(pairs));
  }

  /// Makes a drafter that has seen no answer yet, or one that knows this answer; null where the
  /// candidate has one for all answers.
  std::unique_ptr<vitrine::Drafter> make_own(const DraftCandidate& candidate,
                                             const std::vector<int32_t>& record) {
    if (candidate.kept) return nullptr;
    if (candidate.right_run == 0) return make_drafter_of(candidate.name, engine_, tokenizer_);
    return std::make_unique<RecordedDrafter>(record, candidate.right_run,
                                             engine_.summary().vocab_size);
  }

  vitrine::GenerateResult answer(const AnswerKind& kind, const std::vector<int32_t>& prompt,
                                 const vitrine::SpeculationOptions& speculation) {
    vitrine::GenerateOptions options;
    options.max_new_tokens = arguments_.max_new_tokens;
    options.sampler = kind.sampler;
    options.stop_token_ids = end_ids_;
    options.speculation = speculation;
    options.ignore_end_of_text = !arguments_.right_runs.empty();
    const auto constraint = kind.has_schema ? grammar_->start() : nullptr;
    options.constraint = constraint.get();
    vitrine::GenerateResult result = vitrine::generate(engine_, prompt, options);
    stop_if_interrupted(kSpeculateCancelled);  // which ends an answer, too
    return result;
  }

  vitrine::Engine& engine_;
  const vitrine::Tokenizer& tokenizer_;
  const BenchSpeculateArguments& arguments_;
  const vitrine::PassCosts costs_;
  const std::vector<int32_t> end_ids_;
  std::optional<vitrine::Grammar> grammar_;
};

/// Opens heads among the candidates, and asks for the features that they read.
std::vector<DraftCandidate> open_candidates(const BenchSpeculateArguments& arguments,
                                            vitrine::EngineOptions& options) {
  std::vector<DraftCandidate> all;
  for (const int right_run : arguments.right_runs) {
    DraftCandidate& candidate = all.emplace_back();
    candidate.name = fmt::format("{} right", right_run);
    candidate.right_run = right_run;
  }
  if (!all.empty()) return all;
  for (const std::string& name : arguments.candidates) {
    DraftCandidate& candidate = all.emplace_back();
    candidate.name = name;
    if (!arguments.cost) {
      candidate.kept = open_heads_of(name, arguments.model, arguments.head_layers);
    }
    if (candidate.kept == nullptr) continue;
    const auto read = candidate.kept->feature_layers();
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

/// Makes the drafters that learn nothing of an answer and need the target: each once, since they
/// may load a model.
void make_kept(std::vector<DraftCandidate>& candidates, vitrine::Engine& engine,
               const vitrine::Tokenizer& tokenizer) {
  const auto learning = vitrine::drafter_names();
  for (DraftCandidate& candidate : candidates) {
    const std::string& name = candidate.name;
    if (candidate.right_run > 0 || name == "auto") continue;
    if (std::ranges::find(learning, name) != learning.end()) continue;
    if (!candidate.kept) candidate.kept = make_drafter_of(name, engine, tokenizer);
    const std::string path = draft_model_of(name);
    if (path.empty()) continue;
    const vitrine::Checkpoint checkpoint = open_model(path);
    candidate.overlap = vitrine::compare_vocabularies(
        vitrine::open_tokenizer(checkpoint, vitrine::read_model_facts(checkpoint)), tokenizer);
  }
}

int run_bench_speculate(const BenchSpeculateArguments& arguments) {
  if (arguments.prompts.empty() == !arguments.cost) {
    refuse("bench speculate measures answers or passes; expected --prompts FILE, or --cost");
  }
  if (arguments.probes && (arguments.cost || arguments.selects)) {
    refuse("--probe-layers is a measurement of its own; expected it without --cost and --select");
  }
  for (const std::string& name : arguments.candidates) {
    if (name != "auto") check_drafter_form(name);
  }
  std::vector<std::vector<int32_t>> prompts;
  std::vector<int32_t> end_ids;  // of a turn
  vitrine::EngineOptions options = arguments.device.engine_options();
  std::vector<DraftCandidate> candidates = open_candidates(arguments, options);
  options.max_context = 256;
  options.max_sequences = 1;
  const vitrine::Checkpoint checkpoint = open_model(arguments.model);
  const vitrine::ModelFacts config = vitrine::read_model_facts(checkpoint);
  const vitrine::Tokenizer tokenizer = vitrine::open_tokenizer(checkpoint, config);
  if (!arguments.cost) {
    prompts = encode_prompts(arguments, checkpoint, tokenizer, end_ids);
    const size_t longest = std::ranges::max(prompts, {}, &std::vector<int32_t>::size).size();
    options.max_context = static_cast<int>(longest) + arguments.max_new_tokens;
  }
  options.max_context =
      static_cast<int>(std::min<int64_t>(options.max_context, config.max_position_embeddings));
  reserve_branches(arguments.max_drafts, arguments.max_depth, options);
  options.max_step_tokens = std::min(512, options.max_context);
  options.max_logit_rows = std::min(std::max(arguments.most_drafts() + 1, 16), options.max_context);
  options.max_step_tokens = std::max(options.max_step_tokens, options.max_logit_rows);
  options.audit_mode = vitrine::AuditMode::kNone;
  const bool is_divided = options.draft_kv_bytes.has_value();
  for (const DraftCandidate& candidate : candidates) {
    if (is_divided || arguments.cost || candidate.right_run > 0) continue;
    reserve_draft_bytes(candidate.name, arguments.model, candidate.kept.get(), options);
  }
  if (arguments.probes) {
    catch_interrupts();
    return probe_head_layers(arguments, prompts, options, static_cast<int>(config.num_layers));
  }
  for (const std::string& name : arguments.candidates) {
    const std::vector<int> layers = layers_read_by(name, arguments.model);
    if (!layers.empty() && !arguments.cost) options.feature_layers = layers;
  }
  const auto engine = vitrine::Engine::load(arguments.model, options);
  catch_interrupts();
  vitrine::PassCosts costs;
  if (!arguments.costs_file.empty()) {
    costs = read_pass_costs(arguments.costs_file);
  } else if (arguments.right_runs.empty()) {
    costs = vitrine::measure_pass_costs(*engine, 16, 9);
  }
  if (arguments.cost) {
    if (arguments.json) {
      write_json(costs_report(*engine, arguments.model, costs));
    } else {
      write_out(costs_table(*engine, arguments.model, costs));
    }
    return 0;
  }
  make_kept(candidates, *engine, tokenizer);
  SpeculateBench bench(*engine, tokenizer, arguments, costs, end_ids);
  std::vector<AnswerKind> kinds = answer_kinds(arguments.kinds, arguments.temperature);
  if (arguments.selects) {
    kinds.clear();
    for (const float temperature : {0.0F, 0.7F, 1.0F}) {
      kinds.push_back(answer_kinds({}, temperature).front());
      kinds.back().name = fmt::format("T = {}", temperature);
    }
  }
  std::vector<CandidateRuns> all;
  for (DraftCandidate& candidate : candidates) {
    for (const AnswerKind& kind : kinds) all.push_back(bench.run(candidate, kind, prompts));
  }
  if (arguments.json) {
    write_json(speculate_report(arguments, all, costs));
  } else if (arguments.selects) {
    write_out(selection_table(arguments, candidates, all, costs));
  } else {
    write_out(speculate_table(arguments, all));
  }
  const bool is_same = std::ranges::all_of(
      all, [&](const CandidateRuns& runs) { return runs.identical == runs.prompts; });
  return is_same ? 0 : 1;
}

}  // namespace

std::vector<std::string> answer_kind_names() {
  return {"greedy", "sampled", "penalties", "schema"};
}

std::vector<AnswerKind> answer_kinds(const std::vector<std::string>& names, float temperature) {
  constexpr float kSampled = 0.8F;
  const auto named = [](const std::string& name, float kind_temperature) {
    AnswerKind kind;
    kind.name = name;
    kind.sampler.temperature = kind_temperature;
    kind.sampler.seed = 1;
    return kind;
  };
  if (names.empty()) return {named(temperature > 0 ? "sampled" : "greedy", temperature)};
  std::vector<AnswerKind> kinds;
  for (const std::string& name : names) {
    AnswerKind& kind = kinds.emplace_back(named(name, name == "greedy" ? 0.0F : kSampled));
    if (name == "penalties") kind.sampler.repetition_penalty = 1.2F;
    kind.has_schema = name == "schema";
  }
  return kinds;
}

void add_bench_speculate(CLI::App& bench, Command& command) {
  auto arguments = std::make_shared<BenchSpeculateArguments>();
  CLI::App* speculate = bench.add_subcommand(
      "speculate", "What guessing ahead is worth: speed beside the same answers without");
  add_model(*speculate, arguments->model);
  speculate->add_option("--prompts", arguments->prompts,
                        "a JSON string a line, or an object with a string 'prompt': a user's "
                        "message, where the model has a chat template");
  speculate->add_flag("--raw", arguments->is_raw, "the prompts are the text itself, no messages");
  speculate->add_option("--max-prompts", arguments->max_prompts, "only the first so many; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  speculate
      ->add_option("--candidates", arguments->candidates,
                   "who guesses, with commas: ngram, suffix, mtp, draft=MODEL, exit=LAYER, "
                   "hispec=LAYER, auto, or heads as --speculate of generate has them")
      ->delimiter(',')
      ->capture_default_str();
  add_head_layers(*speculate, arguments->head_layers);
  speculate->add_option("-n,--max-new-tokens", arguments->max_new_tokens, "tokens of an answer")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  speculate->add_option("--draft-max", arguments->max_drafts, "guesses of a pass, at most")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_draft_tree(*speculate, arguments->max_drafts, arguments->max_depth);
  speculate->add_option("--draft-costs", arguments->costs_file,
                        "what passes cost, as --cost --json writes it");
  speculate->add_flag("--draft-ungated", arguments->is_ungated,
                      "candidates but auto guess in every pass, whether it pays or not");
  speculate->add_option("--temperature", arguments->temperature, "of the sampler; 0: greedy")
      ->check(CLI::Range(0.0, 10.0))
      ->capture_default_str();
  speculate
      ->add_option("--kinds", arguments->kinds,
                   "answers of these kinds, with commas: greedy, sampled (temperature 0.8), "
                   "penalties (and a repetition penalty of 1.2), schema (and a JSON schema)")
      ->delimiter(',')
      ->check(CLI::IsMember(answer_kind_names()));
  speculate->add_flag("--select", arguments->selects,
                      "at temperatures 0, 0.7 and 1: how often guesses are right by position, what "
                      "they cost, the speed that this predicts and the one that was measured");
  speculate->add_flag("--probe-layers", arguments->probes,
                      "what heads guess where they read the layers that their config names, and "
                      "one below and above: writers count them differently");
  speculate->add_option("--repeat", arguments->repeat, "pairs of each prompt")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  speculate->add_flag("--cost", arguments->cost,
                      "what a pass of 1, 2, 3, 4, 6, 8, 12, 16 tokens of one sequence costs");
  CLI::Option* right_runs =
      speculate
          ->add_option(
              "--right-runs", arguments->right_runs,
              "instead of candidates, guesses of the answer as it was without: with commas, "
              "how many right ones stand before a wrong one in each pass; answers go on "
              "behind an end of text")
          ->delimiter(',')
          ->check(CLI::Range(1, vitrine::kMaxDrafts - 1));
  for (const char* other :
       {"--candidates", "--head-layers", "--probe-layers", "--draft-max", "--draft-tree",
        "--draft-costs", "--draft-ungated", "--select", "--cost"}) {
    right_runs->excludes(speculate->get_option(other));
  }
  speculate->add_flag("--json", arguments->json, "one JSON object instead of a table");
  arguments->device.add_to(*speculate);
  speculate->callback(
      [arguments, &command] { command = [arguments] { return run_bench_speculate(*arguments); }; });
}

}  // namespace cli
