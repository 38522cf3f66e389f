// SPDX-License-Identifier: Apache-2.0
// Private to the room: schemas of arguments, closed.
#pragma once

#include <nlohmann/json.hpp>

namespace vitrine::chat {

/// Makes objects hold no keys that the schema does not name, where it names some and says nothing
/// of others. What the schema accepts then, it accepts as it was.
void close_objects(nlohmann::ordered_json& schema);

}  // namespace vitrine::chat
