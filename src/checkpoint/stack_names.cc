// SPDX-License-Identifier: Apache-2.0
#include "stack_names.h"

namespace vitrine::checkpoint {
namespace {

constexpr StackPart kStackParts[] = {
    {"", ".weight", StackRole::kNumbers},
    {".weight", ".weight", StackRole::kNumbers},
    {"_packed", ".weight_packed", StackRole::kNumbers},
    {".weight_packed", ".weight_packed", StackRole::kNumbers},
    {"_scale", ".weight_scale", StackRole::kScales},
    {"_weight_scale", ".weight_scale", StackRole::kScales},
    {".weight_scale", ".weight_scale", StackRole::kScales},
    {"_scale_inv", ".weight_scale_inv", StackRole::kScales},
    {"_weight_scale_inv", ".weight_scale_inv", StackRole::kScales},
    {".weight_scale_inv", ".weight_scale_inv", StackRole::kScales},
    {"_zero_point", ".weight_zero_point", StackRole::kZeroPoints},
    {".weight_zero_point", ".weight_zero_point", StackRole::kZeroPoints},
    {"_global_scale", ".weight_global_scale", StackRole::kFactor},
    {".weight_global_scale", ".weight_global_scale", StackRole::kFactor},
    {"_weight_scale_2", ".weight_scale_2", StackRole::kFactor},
    {".weight_scale_2", ".weight_scale_2", StackRole::kFactor},
    {"_shape", ".weight_shape", StackRole::kShape},
    {".weight_shape", ".weight_shape", StackRole::kShape},
    {"_g_idx", ".weight_g_idx", StackRole::kOrder},
    {".weight_g_idx", ".weight_g_idx", StackRole::kOrder},
    {"_input_scale", ".input_scale", StackRole::kActivations},
    {".input_scale", ".input_scale", StackRole::kActivations},
    {"_activation_scale", ".activation_scale", StackRole::kActivations},
    {"_input_global_scale", ".input_global_scale", StackRole::kActivations},
    {".input_global_scale", ".input_global_scale", StackRole::kActivations},
    {"_input_zero_point", ".input_zero_point", StackRole::kActivations},
};

}  // namespace

std::optional<StackName> stack_name(std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  for (const StackPart& part : kStackParts) {
    if (!name.ends_with(part.ending)) continue;
    const std::string_view stem = name.substr(0, name.size() - part.ending.size());
    for (const FusedLayout& layout : fused_layouts()) {
      std::string_view suffix = layout.suffix;
      if (suffix.ends_with(kWeight)) suffix.remove_suffix(kWeight.size());
      if (stem.ends_with(suffix)) return StackName{std::string(stem), &layout, &part};
    }
  }
  return std::nullopt;
}

}  // namespace vitrine::checkpoint
