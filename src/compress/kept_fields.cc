// SPDX-License-Identifier: Apache-2.0
#include "kept_fields.h"

#include <nlohmann/json.hpp>

#include "mixed_bits.h"
#include "vitrine/audit_log.h"

namespace vitrine::compress {
namespace {

using FieldJson = nlohmann::ordered_json;

constexpr const char* kWidthsName = "widths";

/// Gives each matrix the scheme that stands under its module; returns whether all have one.
bool apply_widths(const std::string& text, QuantizePlan& plan) {
  const FieldJson kept = FieldJson::parse(text, nullptr, false);
  if (!kept.is_object() || !kept.contains("matrices")) return false;
  const FieldJson& widths = kept["matrices"];
  for (PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr) continue;
    const auto found = widths.find(planned.module);
    if (found == widths.end() || !found->is_string()) return false;
    planned.method = &find_quant_method(found->get<std::string>());
  }
  if (const auto found = kept.find("recipes"); found != kept.end()) {
    plan.recipes = {.by_layer = found->value("by_layer", 0.0),
                    .by_expert = found->value("by_expert", 0.0)};
  }
  return true;
}

std::string widths_text(const QuantizePlan& plan) {
  nlohmann::json kept = {{"matrices", nlohmann::json::object()}};
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.method != nullptr) kept["matrices"][planned.module] = planned.method->name;
  }
  if (plan.recipes) {
    kept["recipes"] = {{"by_layer", plan.recipes->by_layer},
                       {"by_expert", plan.recipes->by_expert}};
  }
  return kept.dump();
}

}  // namespace

KeptLayers::Fields kept_fields(const Checkpoint& checkpoint, const QuantizeOptions& options,
                               const std::vector<FileRecord>& weight_files) {
  std::string source = sha256_of_text(checkpoint.config_json()) + "\n";
  for (const FileRecord& file : weight_files) source += file.name + " " + file.sha256 + "\n";
  const FieldJson chosen = {{"scheme", options.scheme},
                            {"mixed_by_use", options.mixed_by_use},
                            {"group_size", options.group_size},
                            {"method", options.method},
                            {"smoothing", options.smoothing},
                            {"quantize_head", options.quantize_head},
                            {"lenient_weights", options.lenient_weights}};
  return {{"build", engine_build()},
          {"source", sha256_of_text(source)},
          {"calibration", calibration_ids_sha256(options.calibration)},
          {"options", chosen.dump()}};
}

void take_widths(const Checkpoint& checkpoint, const std::string& model,
                 const QuantizeOptions& options, double bits, QuantizePlan& plan,
                 const KeptLayers* kept, ProgressTeller& progress) {
  if (kept != nullptr) {
    const std::optional<std::string> found = kept->find_text(kWidthsName);
    if (found && apply_widths(*found, plan)) return;
  }
  choose_widths(checkpoint, model, options, bits, plan, progress);
  if (kept != nullptr) kept->keep_text(kWidthsName, widths_text(plan));
}

}  // namespace vitrine::compress
