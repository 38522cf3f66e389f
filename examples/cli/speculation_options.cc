// SPDX-License-Identifier: Apache-2.0
#include "speculation_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "option_section.h"
#include "text_file.h"
#include "vitrine/drafters.h"
#include "vitrine/speculate.h"

namespace cli {

namespace {

constexpr size_t kMaxCostsBytes = size_t{1} << 20;
constexpr int kMaxDraftsOption = 64;

constexpr std::string_view kDraftModel = "draft=", kExit = "exit=", kHiSpec = "hispec=",
                           kMtp = "mtp";

/// The folder of "eagle3=HEADS"; empty for another form.
std::string heads_of(const std::string& kind) {
  const size_t end = kind.find('=');
  const auto names = vitrine::draft_head_names();
  const bool is_heads =
      end != std::string::npos && std::ranges::find(names, kind.substr(0, end)) != names.end();
  return is_heads ? kind.substr(end + 1) : "";
}

// "8x4": guesses of a pass, and of a path.
std::string read_tree(const std::string& text, int& guesses, int& depth) {
  const size_t cross = text.find('x');
  const auto number = [](std::string_view part, int& found) {
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), found);
    return error == std::errc() && end == part.data() + part.size() && found > 0;
  };
  const bool is_read = cross != std::string::npos &&
                       number(std::string_view(text).substr(0, cross), guesses) &&
                       number(std::string_view(text).substr(cross + 1), depth);
  if (is_read && guesses <= kMaxDraftsOption && depth <= guesses) return "";
  return fmt::format("'{}' is no tree; expected guesses x depth as 8x4, up to {}", text,
                     kMaxDraftsOption);
}

// "exit=8" or "hispec=8"; none where it is another form.
std::optional<vitrine::EarlyExitOptions> find_exit(const std::string& kind) {
  const bool is_checked = kind.starts_with(kHiSpec);
  if (!is_checked && !kind.starts_with(kExit)) return std::nullopt;
  const std::string_view text =
      std::string_view(kind).substr(is_checked ? kHiSpec.size() : kExit.size());
  int layers = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layers);
  const int least = is_checked ? 2 : 1;
  if (error != std::errc() || end != text.data() + text.size() || layers < least) {
    refuse(fmt::format("'{}' names no layer; expected a number of layers from {} on, as {}8", kind,
                       least, is_checked ? kHiSpec : kExit));
  }
  if (!is_checked) return vitrine::EarlyExitOptions{.layers = layers};
  return vitrine::EarlyExitOptions{.layers = layers / 2, .checking_layers = layers};
}

std::unique_ptr<vitrine::Drafter> make_exit(const std::string& kind, vitrine::Stepper& model,
                                            const vitrine::EarlyExitOptions& options) {
  if (vitrine::Engine* const engine = model.engine()) {
    return vitrine::make_early_exit(*engine, options);
  }
  refuse(
      fmt::format("'{}' guesses with layers of one model; expected ngram, suffix or {}MODEL for "
                  "a federation",
                  kind, kDraftModel));
}

// The CPU's fused kernels alone have threads of their own; null for others.
std::shared_ptr<vitrine::engine::EngineThreads> threads_to_share(vitrine::Stepper& model) {
  vitrine::Engine* const engine = model.engine();
  const bool shares = engine != nullptr && engine->summary().kernels == "fused" &&
                      engine->options().device.kind == vitrine::DeviceKind::kCpu;
  return shares ? engine->threads() : nullptr;
}

uint64_t all_kv_bytes(const std::string& model, const vitrine::EngineOptions& options) {
  uint64_t bytes = 0;
  for (const vitrine::KvMemory& kind : vitrine::kv_memory(open_model(model), options)) {
    bytes += kind.bytes;
  }
  return bytes;
}

double mib(uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

}  // namespace

std::string drafter_forms() {
  std::string forms;
  for (const std::string& name : vitrine::drafter_names()) forms += name + ", ";
  forms += fmt::format("{}, {}MODEL, {}LAYER, {}LAYER", kMtp, kDraftModel, kExit, kHiSpec);
  for (const std::string& name : vitrine::draft_head_names()) forms += ", " + name + "=HEADS";
  return forms;
}

std::string draft_model_of(const std::string& kind) {
  return kind.starts_with(kDraftModel) ? kind.substr(kDraftModel.size()) : "";
}

void check_drafter_form(const std::string& kind) {
  const auto names = vitrine::drafter_names();
  if (kind == kMtp || !draft_model_of(kind).empty() || !heads_of(kind).empty() || find_exit(kind))
    return;
  if (std::ranges::find(names, kind) != names.end()) return;
  refuse(fmt::format("'{}' is no drafter; expected one of {}, auto, off", kind, drafter_forms()));
}

void add_head_layers(CLI::App& command, std::vector<int>& layers) {
  command
      .add_option("--head-layers", layers,
                  "the layers whose input heads read, in their order, with commas, where it is not "
                  "as their config says")
      ->delimiter(',')
      ->check(CLI::NonNegativeNumber);
}

std::unique_ptr<vitrine::Drafter> open_heads_of(const std::string& kind, const std::string& model,
                                                const std::vector<int>& layers) {
  const std::string heads = heads_of(kind);
  if (heads.empty()) return nullptr;
  return vitrine::make_head_drafter(kind.substr(0, kind.find('=')), heads, model, {layers});
}

std::vector<int> layers_read_by(const std::string& kind, const std::string& model) {
  if (kind != kMtp) return {};
  if (model.empty()) {
    refuse(
        "--speculate mtp: the layer guesses for one model, and a federation has several; expected "
        "ngram, suffix, draft=MODEL or auto");
  }
  return {static_cast<int>(vitrine::read_model_facts(open_model(model)).num_layers)};
}

std::unique_ptr<vitrine::Drafter> make_drafter_of(const std::string& kind, vitrine::Stepper& model,
                                                  const vitrine::Tokenizer& tokenizer) {
  if (kind == "auto") return vitrine::make_drafter("suffix");
  if (kind == kMtp) {
    vitrine::EngineOptions target = model.options();
    target.shared_threads = threads_to_share(model);
    return vitrine::make_mtp_drafter(model.summary().path, target);
  }
  if (const auto exit = find_exit(kind)) return make_exit(kind, model, *exit);
  const std::string path = draft_model_of(kind);
  if (path.empty()) return vitrine::make_drafter(kind);
  vitrine::ModelOptions options;
  options.engine = vitrine::draft_model_options(path, model.options());
  options.engine.shared_threads = threads_to_share(model);
  return vitrine::make_draft_model(vitrine::Model::open(path, options), tokenizer);
}

void add_draft_tree(CLI::App& command, int& max_drafts, int& max_depth) {
  command
      .add_option_function<std::string>(
          "--draft-tree",
          [&max_drafts, &max_depth](const std::string& text) {
            const std::string problem = read_tree(text, max_drafts, max_depth);
            if (!problem.empty()) refuse("--draft-tree: " + problem);
          },
          "guesses of a pass as a tree: so many, on paths of such a depth, as 8x4")
      ->excludes("--draft-max")
      ->type_name("NxDEPTH");
}

void reserve_branches(int max_drafts, int max_depth, vitrine::EngineOptions& options) {
  if (max_depth == 0 || options.kv_bytes > 0 || options.max_context == 0) return;
  constexpr int kBlockSize = 64, kBlocksOfBranch = 2;  // where a text ends, and the next one
  const int block = options.kv_block_size > 0 ? options.kv_block_size : kBlockSize;
  const int of_sequence = (options.max_context + block - 1) / block;
  const int needed = (max_drafts - 1) * kBlocksOfBranch;
  options.max_sequences += (needed + of_sequence - 1) / of_sequence;
}

void reserve_draft_bytes(const std::string& kind, const std::string& model,
                         const vitrine::Drafter* heads, vitrine::EngineOptions& options) {
  if (options.kv_bytes == 0) return;
  vitrine::EngineOptions whole = options;
  whole.kv_bytes = 0;
  whole.draft_kv_bytes.reset();
  const auto sequences = static_cast<uint64_t>(options.max_sequences);
  const std::string draft = draft_model_of(kind);
  const uint64_t needed = heads != nullptr ? heads->text_kv_bytes(options.max_context) * sequences
                          : kind == kMtp   ? vitrine::mtp_kv_bytes(model, whole)
                          : !draft.empty()
                              ? all_kv_bytes(draft, vitrine::draft_model_options(draft, whole))
                              : 0;
  if (needed == 0) return;
  uint64_t share = options.kv_bytes / 2;
  if (heads == nullptr && !model.empty()) {
    const double part =
        static_cast<double>(needed) / static_cast<double>(needed + all_kv_bytes(model, whole));
    share = static_cast<uint64_t>(part * static_cast<double>(options.kv_bytes));
  }
  options.draft_kv_bytes = std::max(options.draft_kv_bytes.value_or(0), std::min(needed, share));
}

void SpeculationArguments::add_to(CLI::App& command) {
  const OptionSection section(command, "Speculation");
  command
      .add_option(
          "--speculate", kind,
          "guess tokens ahead and check several in a pass, the text stays the same: ngram "
          "(what followed the same piece of the text), suffix (what most often did), "
          "draft=MODEL (what a smaller model chooses), mtp (the layer that the checkpoint brings "
          "for it), heads in a folder that were trained for the "
          "model (eagle3=HEADS, peagle=HEADS, medusa=HEADS), exit=LAYER (what the model's first "
          "layers choose), hispec=LAYER (half as many, checked by these), auto (suffix), or off; "
          "who guesses is asked where it pays")
      ->capture_default_str();
  add_head_layers(command, head_layers);
  command.add_option("--draft-max", max_drafts, "guesses of a pass, at most")
      ->check(CLI::Range(1, kMaxDraftsOption))
      ->capture_default_str();
  add_draft_tree(command, max_drafts, max_depth);
  command
      .add_option("--accept", acceptance,
                  "how guesses are checked: noise (by the token that is chosen without them, the "
                  "text stays the same), or rejection (rejection sampling, to compare with papers: "
                  "the same distribution, another text)")
      ->check(CLI::IsMember({"noise", "rejection"}))
      ->capture_default_str();
  threshold_ =
      command
          .add_option("--draft-threshold", threshold_value_,
                      "guess only where the tokens of a pass over its cost come to this, measured "
                      "in passes of one token")
          ->check(CLI::Range(0.0, 1e6))
          ->capture_default_str();
  command
      .add_flag("--draft-ungated", is_ungated_,
                "guess in every pass, as many tokens as --draft-max says, whether it pays or not")
      ->excludes("--draft-threshold");
  command.add_option("--draft-costs", costs_file,
                     "what passes cost, as `bench speculate --cost --json` writes it, instead of "
                     "measuring it at the start");
}

bool SpeculationArguments::has_dear_texts() const {
  return kind == kMtp || !draft_model_of(kind).empty() || !heads_of(kind).empty();
}

void SpeculationArguments::check() const {
  if (is_given() && kind != "auto") check_drafter_form(kind);
  if (!head_layers.empty() && heads_of(kind).empty()) {
    refuse("--head-layers says what heads read; expected --speculate eagle3=HEADS or other heads");
  }
  if (!is_given() && (threshold_->count() > 0 || is_ungated_ || !costs_file.empty())) {
    refuse(
        "--draft-threshold, --draft-ungated and --draft-costs are for guesses; expected "
        "--speculate too");
  }
  if (is_ungated_ && kind == "auto") {
    refuse("--draft-ungated guesses whether it pays or not; expected --speculate suffix");
  }
  if (checks_by_rejection() && (!is_given() || max_depth > 0)) {
    refuse(
        "--accept rejection checks chains of guesses; expected --speculate too, and no "
        "--draft-tree");
  }
  if (!costs_file.empty() && !has_gate()) {
    refuse(
        "--draft-costs says when guesses pay; expected it without --draft-ungated, and with "
        "--accept rejection --draft-threshold too");
  }
}

std::vector<std::pair<std::string, std::string>> SpeculationArguments::description() const {
  if (!is_given()) return {};
  std::vector<std::pair<std::string, std::string>> options = {
      {"drafter", kind}, {"draft_max", std::to_string(max_drafts)}};
  if (max_depth > 0) options.emplace_back("draft_depth", std::to_string(max_depth));
  if (checks_by_rejection()) options.emplace_back("draft_acceptance", acceptance);
  if (has_gate()) options.emplace_back("draft_threshold", fmt::format("{}", threshold_value_));
  return options;
}

std::unique_ptr<vitrine::Drafter> SpeculationArguments::reserve_steps(
    const std::string& model, vitrine::EngineOptions& options) const {
  if (!is_given()) return nullptr;
  if (!heads_of(kind).empty() && model.empty()) {
    refuse(
        fmt::format("--speculate {}: heads guess for one model, and a federation has several; "
                    "expected ngram, suffix, draft=MODEL or auto",
                    kind));
  }
  options.feature_layers = layers_read_by(kind, model);
  const int most = std::min(max_drafts + 1, options.max_context);
  options.max_step_tokens = std::max(options.max_step_tokens, most);
  options.max_logit_rows = std::max(options.max_logit_rows, most);
  if (!model.empty()) reserve_branches(max_drafts, max_depth, options);
  auto heads = open_heads_of(kind, model, head_layers);
  if (!options.draft_kv_bytes) reserve_draft_bytes(kind, model, heads.get(), options);
  if (heads == nullptr) return heads;
  const auto layers = heads->feature_layers();
  options.feature_layers.assign(layers.begin(), layers.end());
  return heads;
}

vitrine::SpeculationOptions SpeculationArguments::apply(
    vitrine::Stepper& model, const vitrine::Tokenizer& tokenizer,
    std::unique_ptr<vitrine::Drafter>& drafter) const {
  vitrine::SpeculationOptions options;
  if (!is_given()) return options;
  if (drafter == nullptr) drafter = make_drafter_of(kind, model, tokenizer);
  options.drafter = drafter.get();
  options.scope = "answers of one command";
  options.max_drafts = max_drafts;
  options.max_depth = max_depth;
  options.threshold = threshold_value_;
  if (checks_by_rejection()) options.acceptance = vitrine::DraftAcceptance::kRejection;
  if (has_gate()) {
    constexpr int kRepeats = 5;
    constexpr double kSeconds = 1;
    add_gate(*drafter,
             costs_file.empty()
                 ? vitrine::measure_pass_costs(model, max_drafts + 1, kRepeats, kSeconds)
                 : read_pass_costs(costs_file),
             options);
  }
  return options;
}

void add_gate(const vitrine::Drafter& drafter, vitrine::PassCosts costs,
              vitrine::SpeculationOptions& options) {
  // Looking up what stands in the text costs next to nothing; others are timed.
  const auto names = vitrine::drafter_names();
  if (std::ranges::find(names, drafter.name()) != names.end()) options.draft_cost = 0;
  options.costs = std::move(costs);
}

vitrine::PassCosts read_pass_costs(const std::string& path) {
  const std::string text = read_text_file(path, kMaxCostsBytes);
  std::vector<vitrine::PassCost> costs;
  try {
    const auto json = nlohmann::json::parse(text);
    for (const nlohmann::json& cost : json.at("costs")) {
      costs.push_back({cost.at("tokens").get<int32_t>(), cost.at("seconds").get<double>()});
    }
  } catch (const nlohmann::json::exception&) {
    refuse(fmt::format(
        "{}: field 'costs' is no table of passes; expected {{\"costs\": [{{\"tokens\": 1, "
        "\"seconds\": …}}, …]}}, as bench speculate --cost --json writes it",
        path));
  }
  try {
    return vitrine::PassCosts(std::move(costs));
  } catch (const vitrine::Error& error) {
    refuse(fmt::format("{}: field 'costs': {}", path, error.what()));
  }
}

nlohmann::ordered_json pass_costs_json(const vitrine::PassCosts& costs) {
  auto json = nlohmann::ordered_json::array();
  for (const vitrine::PassCost& cost : costs.all()) {
    json.push_back({{"tokens", cost.tokens},
                    {"seconds", cost.seconds},
                    {"passes_of_one", costs.of(cost.tokens)}});
  }
  return json;
}

std::string speculation_note(const vitrine::SpeculationCounts& counts) {
  if (counts.drafter.empty()) return "";
  if (counts.num_draft_tokens == 0) return fmt::format("; {}: no guess", counts.drafter);
  return fmt::format("; {}: {} of {} guesses right, {:.2f} tokens a pass with guesses",
                     counts.drafter, counts.num_accepted_draft_tokens, counts.num_draft_tokens,
                     counts.mean_acceptance_length());
}

std::string speculation_text(const vitrine::SpeculationCounts& counts) {
  if (counts.drafter.empty()) return "";
  std::string text = fmt::format(
      "guesses     {}: {} of {} right ({:.0f} %) in {} of {} passes, {:.2f} tokens each\n",
      counts.drafter, counts.num_accepted_draft_tokens, counts.num_draft_tokens,
      100 * counts.draft_acceptance_rate(), counts.num_spec_steps, counts.num_passes,
      counts.mean_acceptance_length());
  text += fmt::format("            {} positions thrown away, {} passes in a pause\n",
                      counts.num_discarded_tokens, counts.num_paused_passes);
  if (counts.num_replaced_draft_tokens > 0) {
    text += fmt::format("            {} guesses replaced by the drafter's own check\n",
                        counts.num_replaced_draft_tokens);
  }
  text += fmt::format(
      "            {:.1f} ms guessing, {:.1f} ms checking, {:.1f} ms of it what was wrong\n",
      1000 * counts.draft_seconds, 1000 * counts.verify_seconds, 1000 * counts.rejected_seconds);
  text += fmt::format(
      "            memory: {:.1f} MiB weights, {:.1f} MiB keys and values, {:.1f} "
      "MiB texts\n",
      mib(counts.memory.weight_bytes), mib(counts.memory.kv_bytes), mib(counts.memory.index_bytes));
  text += "            passes by right guesses:";
  for (size_t right = 0; right < counts.acceptance_histogram.size(); ++right) {
    text += fmt::format(" {}", counts.acceptance_histogram[right]);
  }
  return text + "\n";
}

nlohmann::ordered_json speculation_json(const vitrine::SpeculationCounts& counts) {
  return {{"drafter", counts.drafter},
          {"mean_acceptance_length", counts.mean_acceptance_length()},
          {"draft_acceptance_rate", counts.draft_acceptance_rate()},
          {"acceptance_histogram", counts.acceptance_histogram},
          {"num_spec_steps", counts.num_spec_steps},
          {"num_accepted_draft_tokens", counts.num_accepted_draft_tokens},
          {"num_draft_tokens", counts.num_draft_tokens},
          {"num_passes", counts.num_passes},
          {"num_discarded_tokens", counts.num_discarded_tokens},
          {"num_paused_passes", counts.num_paused_passes},
          {"num_replaced_draft_tokens", counts.num_replaced_draft_tokens},
          {"draft_seconds", counts.draft_seconds},
          {"verify_seconds", counts.verify_seconds},
          {"rejected_seconds", counts.rejected_seconds},
          {"draft_weight_bytes", counts.memory.weight_bytes},
          {"draft_kv_bytes", counts.memory.kv_bytes},
          {"draft_index_bytes", counts.memory.index_bytes},
          {"problem", counts.problem.empty() ? nlohmann::ordered_json(nullptr)
                                             : nlohmann::ordered_json(counts.problem)}};
}

}  // namespace cli
