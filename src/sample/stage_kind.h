// SPDX-License-Identifier: Apache-2.0
// What the registry knows of a stage: its name in an order, its options, how it is made.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "vitrine/sample.h"

namespace vitrine {

/// What a stage does to the choice; an order may not let a mask follow a filter.
enum class StageRole { kEdit, kConstraint, kFilter, kSelection };

/// A field of SamplerOptions, by the name that it has there, in logs and (with dashes) on command
/// lines.
struct StageOption {
  using Field = std::variant<float SamplerOptions::*, int32_t SamplerOptions::*,
                             std::vector<int32_t> SamplerOptions::*,
                             std::vector<std::vector<int32_t>> SamplerOptions::*,
                             std::vector<std::pair<int32_t, float>> SamplerOptions::*>;
  std::string_view name;
  Field field;
  std::string_view help;
};

struct StageKind {
  std::string_view name;
  StageRole role = StageRole::kEdit;
  std::vector<StageOption> options;
  /// The stage, or null where the options switch it off. Throws kInvalidArgument for an option out
  /// of range, also where it is off.
  std::unique_ptr<SamplerStage> (*make)(const SamplerOptions& options) = nullptr;
};

/// All kinds that an order may name, in the default order; then those that select.
std::span<const StageKind* const> stage_kinds();
std::span<const StageKind* const> selection_kinds();

[[noreturn]] void refuse_option(const std::string& option, const std::string& found,
                                const std::string& expected);
/// The shortest text that reads as the same number.
std::string shortest(float value);
/// Throws where an id is negative.
void check_ids(const std::string& option, std::span<const int32_t> ids);

}  // namespace vitrine
