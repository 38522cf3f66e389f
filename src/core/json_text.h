// SPDX-License-Identifier: Apache-2.0
// Private to the library: JSON from outside, parsed within bounds, and made fit for one-line
// messages.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace vitrine {

/// `text` in single quotes, control characters and quotes escaped, cut after 120 bytes.
std::string quote_text(std::string_view text);

/// What a JSON value is, for messages: the value itself where it is short, else its type.
std::string found_text(const nlohmann::json& value);

/// Parses a JSON object. Throws kBadFile (naming `file` and the byte) for invalid JSON, another
/// type at the top, a nesting deeper than 64 levels, a key given twice in one object, or more than
/// `max_values` values (an object or a list counts twice).
nlohmann::json parse_json_object(std::string_view text, const std::string& file,
                                 size_t max_values = std::numeric_limits<size_t>::max());

/// Goes through a text without keeping it. Throws as parse_json_object() does, but for any type at
/// the top, and where an object has more than `max_keys` keys: who keeps keys in their order looks
/// through all of them for each.
void check_json(std::string_view text, const std::string& file, size_t max_values, size_t max_keys);

/// Whether a text is JSON of at most so many levels, with at most so many keys in an object; keys
/// may come twice.
enum class JsonBounds : uint8_t { kFits, kTooDeep, kNoJson };
JsonBounds json_bounds(std::string_view text, size_t max_levels, size_t max_keys);

}  // namespace vitrine
