// SPDX-License-Identifier: Apache-2.0
// vitrine bench speculate --probe-layers: what heads guess when they read the layers that their
// config names, and those one below and one above. Writers of heads disagree whether such a number
// means what enters a layer or what leaves it; the wrong layers cost guesses, and no text.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "bench.h"
#include "speculate_runs.h"
#include "speculation_options.h"

namespace cli {

namespace {

struct ProbedLayers {
  std::vector<int> layers;  // whose input the heads read
  bool is_configured = false;
  vitrine::SpeculationCounts counts = {};

  double first_right() const {
    if (counts.num_spec_steps == 0) return 0;
    return 1 - static_cast<double>(counts.acceptance_histogram[0]) /
                   static_cast<double>(counts.num_spec_steps);
  }
};

/// Greedy answers with what the heads guess.
vitrine::SpeculationCounts count_guesses(const BenchSpeculateArguments& arguments,
                                         const std::vector<std::vector<int32_t>>& prompts,
                                         vitrine::EngineOptions options,
                                         vitrine::Drafter& drafter) {
  const auto read = drafter.feature_layers();
  options.feature_layers.assign(read.begin(), read.end());
  const auto engine = vitrine::Engine::load(arguments.model, options);
  vitrine::SpeculationCounts counts;
  for (const std::vector<int32_t>& prompt : prompts) {
    vitrine::GenerateOptions generation;
    generation.max_new_tokens = arguments.max_new_tokens;
    generation.sampler.temperature = 0;
    generation.speculation.drafter = &drafter;
    generation.speculation.max_drafts = arguments.max_drafts;
    counts += vitrine::generate(*engine, prompt, generation).speculation;
    stop_if_interrupted("bench speculate: cancelled before the end");
  }
  if (!counts.problem.empty()) {
    throw vitrine::Error(vitrine::ErrorKind::kInternal, counts.problem);
  }
  return counts;
}

std::vector<ProbedLayers> probe(const BenchSpeculateArguments& arguments, const std::string& name,
                                const std::vector<std::vector<int32_t>>& prompts,
                                const vitrine::EngineOptions& options, int model_layers) {
  const auto own = name.starts_with("medusa=")
                       ? nullptr
                       : open_heads_of(name, arguments.model, arguments.head_layers);
  if (own == nullptr) {
    refuse(fmt::format(
        "--probe-layers: '{}' reads no layers that its config names; expected eagle3=HEADS or "
        "peagle=HEADS among --candidates",
        name));
  }
  std::vector<int> named = arguments.head_layers;  // else in ascending order
  if (named.empty()) named.assign(own->feature_layers().begin(), own->feature_layers().end());
  std::vector<ProbedLayers> all;
  for (const int shift : {0, -1, 1}) {
    ProbedLayers one{.layers = named, .is_configured = shift == 0};
    for (int& layer : one.layers) layer += shift;
    const bool is_there = std::ranges::all_of(
        one.layers, [&](int layer) { return layer >= 0 && layer <= model_layers; });
    if (!is_there) continue;
    const auto drafter = shift == 0 ? nullptr : open_heads_of(name, arguments.model, one.layers);
    one.counts = count_guesses(arguments, prompts, options, drafter ? *drafter : *own);
    all.push_back(std::move(one));
  }
  return all;
}

/// The layers that give most tokens a pass; of equal ones those that were named.
const ProbedLayers& best_of(const std::vector<ProbedLayers>& all) {
  return *std::ranges::max_element(
      all, {}, [](const ProbedLayers& one) { return one.counts.mean_acceptance_length(); });
}

std::string probe_text(const std::string& name, const std::vector<ProbedLayers>& all) {
  std::string text =
      fmt::format("{}\n{:>20}{:>14}{:>16}\n", name, "layers", "first right", "tokens a pass");
  for (const ProbedLayers& one : all) {
    text +=
        fmt::format("{:>20}{:>12.1f} %{:>16.2f}\n", fmt::format("{}", fmt::join(one.layers, ",")),
                    100 * one.first_right(), one.counts.mean_acceptance_length());
  }
  const ProbedLayers& best = best_of(all);
  const std::string layers = fmt::format("{}", fmt::join(best.layers, ","));
  return text + (best.is_configured
                     ? fmt::format("the heads read {}, which is best\n", layers)
                     : fmt::format("{} is better than {}; give --head-layers {}\n", layers,
                                   fmt::join(all.front().layers, ","), layers));
}

}  // namespace

int probe_head_layers(const BenchSpeculateArguments& arguments,
                      const std::vector<std::vector<int32_t>>& prompts,
                      const vitrine::EngineOptions& options, int model_layers) {
  std::string text;
  auto json = nlohmann::ordered_json::array();
  for (const std::string& name : arguments.candidates) {
    const auto all = probe(arguments, name, prompts, options, model_layers);
    text += (text.empty() ? "" : "\n") + probe_text(name, all);
    for (const ProbedLayers& one : all) {
      json.push_back({{"name", name},
                      {"layers", one.layers},
                      {"is_configured", one.is_configured},
                      {"is_best", &one == &best_of(all)},
                      {"first_right", one.first_right()},
                      {"counts", speculation_json(one.counts)}});
    }
  }
  if (arguments.json) {
    nlohmann::ordered_json report;
    report["model"] = arguments.model;
    report["probes"] = std::move(json);
    write_json(report);
  } else {
    write_out(text);
  }
  return 0;
}

}  // namespace cli
