// SPDX-License-Identifier: Apache-2.0
// Private to the room: JSON from outside as values of a template, in the order of the file.
#pragma once

#include <string>
#include <string_view>

#include "value.h"

namespace vitrine::chat {

/// Throws kBadFile ("name: …") for invalid JSON, brackets deeper than kMaxValueDepth, or a whole
/// number beyond 64 bits.
Value parse_json_value(Runtime& runtime, std::string_view text);

}  // namespace vitrine::chat
