// SPDX-License-Identifier: Apache-2.0
// Private to the room: folders of models that see and hear, whose text model is read.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// A text model's fields, and what stands before them in messages.
struct TextConfig {
  nlohmann::json fields;
  std::string place;
};

/// The `text_config` of a wrapper, with what it leaves to the wrapper; else the config itself.
/// Throws kBadFile for a wrapper without one.
TextConfig text_config(nlohmann::json config, const std::string& place);

/// The `quantization_config` of a config, or the one in its `text_config` (Kimi K2.5); nothing
/// where there is neither. Throws kBadFile for one that is no object.
std::optional<Fields> quantization_fields(const Fields& config);

/// Gives tensors of a wrapper's text model the names that they have in a folder of that model
/// alone: "model.language_model.norm.weight" and "language_model.model.norm.weight" become
/// "model.norm.weight". Throws kBadFile where two get one name; `paths` are the files.
void rename_text_tensors(std::vector<TensorInfo>& tensors, const std::vector<std::string>& paths);

}  // namespace vitrine::checkpoint
