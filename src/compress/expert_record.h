// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a manifest says of experts, and of what did not go as it was asked.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "vitrine/compress.h"

namespace vitrine::compress {

/// Returns how many experts were calibrated by tokens of their own, shrunk towards those of all,
/// rounded to the nearest and left as they are, and by block ("model.layers.3.mlp") how many tokens
/// each one's matrices saw. Null for a model without experts.
nlohmann::ordered_json experts_record(const QuantizeReport& report);

/// Returns the matrices that a method did not reach, those whose damping was raised, and those that
/// stayed as they are since groups do not divide them.
nlohmann::ordered_json fallbacks_record(const QuantizeReport& report, const std::string& method);

}  // namespace vitrine::compress
