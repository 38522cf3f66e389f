// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a config means that leaves keys out.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vitrine::checkpoint {

/// Adds the keys that a config leaves out, with the family's defaults (Family::defaults); a key
/// that is null stays so. A text model's own config says its sizes (vocabulary, hidden size,
/// layers, heads); only a wrapper's (`is_wrapped`) may leave them out.
void add_family_defaults(nlohmann::json& fields, bool is_wrapped);

/// Returns the keys of such defaults that a config leaves out.
std::vector<std::string> absent_keys(const nlohmann::json& fields);

}  // namespace vitrine::checkpoint
