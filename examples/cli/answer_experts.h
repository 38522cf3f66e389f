// SPDX-License-Identifier: Apache-2.0
// What `/audit` shows: the experts that made an answer.
#pragma once

#include <string>
#include <vector>

#include "vitrine/audit.h"

namespace cli {

/// Lists each layer's experts by use, over the records whose predictions are an answer's tokens: in
/// how many tokens each had a part, its share of the layer's routes, and its mean gate weight, of
/// weights that add up to 1. `most` experts a layer; the others are counted in one line.
std::string answer_experts(const std::vector<vitrine::TokenRecord>& records, size_t most);

}  // namespace cli
