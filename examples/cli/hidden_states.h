// SPDX-License-Identifier: Apache-2.0
// What `generate` is told about hidden states.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "vitrine/audit.h"

namespace cli {

/// --hidden-states: "all", or layers with commas, 0 to `num_layers`. Refuses anything else.
std::vector<int> parse_hidden_layers(const std::string& text, int num_layers);

/// --hidden-positions: "all" (an empty function), "generated", or FIRST-LAST with commas. Refuses
/// anything else.
std::function<bool(const vitrine::TokenRecord&)> parse_hidden_positions(const std::string& text);

}  // namespace cli
