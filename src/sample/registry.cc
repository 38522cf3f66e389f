// SPDX-License-Identifier: Apache-2.0
// The stages there are, in the default order, and how options make a pipeline of them.
#include <algorithm>
#include <array>
#include <charconv>

#include "stage_kind.h"

namespace vitrine {

// One line here and one below: a stage's registration.
const StageKind& logit_bias_kind();
const StageKind& ban_kind();
const StageKind& penalties_kind();
const StageKind& dry_kind();
const StageKind& constraint_kind();
const StageKind& temperature_kind();
const StageKind& top_n_sigma_kind();
const StageKind& top_k_kind();
const StageKind& typical_p_kind();
const StageKind& top_p_kind();
const StageKind& min_p_kind();
const StageKind& xtc_kind();
const StageKind& mirostat_kind();

std::span<const StageKind* const> stage_kinds() {
  static const std::array kKinds = {&logit_bias_kind(),  &ban_kind(),        &penalties_kind(),
                                    &dry_kind(),         &constraint_kind(), &temperature_kind(),
                                    &top_n_sigma_kind(), &top_k_kind(),      &typical_p_kind(),
                                    &top_p_kind(),       &min_p_kind(),      &xtc_kind()};
  return kKinds;
}

std::span<const StageKind* const> selection_kinds() {
  static const std::array kKinds = {&mirostat_kind()};
  return kKinds;
}

namespace {

const StageKind& find_kind(const std::string& name) {
  const auto found = std::ranges::find(stage_kinds(), name, &StageKind::name);
  if (found != stage_kinds().end()) return **found;
  std::string names;
  for (const StageKind* kind : stage_kinds()) {
    names += (names.empty() ? "" : ", ") + std::string(kind->name);
  }
  refuse_option("samplers", "'" + name + "', which is no stage", "some of " + names);
}

std::vector<const StageKind*> resolve_order(const SamplerOptions& options) {
  const std::vector<std::string> names =
      options.samplers.empty() ? default_sampler_order(options) : options.samplers;
  std::vector<const StageKind*> order;
  const StageKind* filter = nullptr;
  for (const std::string& name : names) {
    const StageKind& kind = find_kind(name);
    if (std::ranges::find(order, &kind) != order.end()) {
      refuse_option("samplers", "'" + name + "' twice", "each stage once");
    }
    if (kind.role == StageRole::kFilter && filter == nullptr) filter = &kind;
    // Behind a filter a constrained step could lose its last valid token to that.
    if (kind.role == StageRole::kConstraint && filter != nullptr) {
      refuse_option("samplers", "'constraint' behind '" + std::string(filter->name) + "'",
                    "it before every stage that narrows the choice");
    }
    order.push_back(&kind);
  }
  const bool has_mask = std::ranges::any_of(
      order, [](const StageKind* kind) { return kind->role == StageRole::kConstraint; });
  if (!has_mask) order.insert(order.begin(), &constraint_kind());
  return order;
}

}  // namespace

std::vector<std::string> default_sampler_order(const SamplerOptions& options) {
  std::vector<std::string> names;
  for (const StageKind* kind : stage_kinds()) {
    if (options.mirostat != 0 && kind->role == StageRole::kFilter) continue;
    names.emplace_back(kind->name);
  }
  return names;
}

SamplerPipeline SamplerPipeline::from_options(const SamplerOptions& options) {
  // Each stage is made, so that its factory checks what it was given: also one that isn't used.
  std::vector<std::pair<const StageKind*, std::unique_ptr<SamplerStage>>> made;
  for (const StageKind* kind : stage_kinds()) made.emplace_back(kind, kind->make(options));
  std::unique_ptr<SamplerStage> selection = make_draw_stage();
  for (const StageKind* kind : selection_kinds()) {
    if (auto stage = kind->make(options)) selection = std::move(stage);
  }
  const bool is_greedy = options.temperature == 0.0f;
  if (is_greedy) selection = make_greedy_stage();
  SamplerPipeline pipeline;
  for (const StageKind* kind : resolve_order(options)) {
    if (is_greedy && kind->role == StageRole::kFilter) continue;
    const auto found = std::ranges::find(made, kind, [](const auto& pair) { return pair.first; });
    if (found->second) pipeline.add(std::move(found->second));
  }
  pipeline.add(std::move(selection));
  return pipeline;
}

}  // namespace vitrine
