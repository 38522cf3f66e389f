// SPDX-License-Identifier: Apache-2.0
// Private to the library: results as JSON. Numbers that are none are written as null.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "vitrine/gates.h"

namespace vitrine::gates {

using Json = nlohmann::ordered_json;

Json json_of(const Interval& interval);
Json json_of(const Estimate& estimate);
/// The text; bytes that are no UTF-8 become U+FFFD.
std::string dump(const Json& json);

}  // namespace vitrine::gates
