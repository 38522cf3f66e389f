// SPDX-License-Identifier: Apache-2.0
// Private to the room: text as numbers, as Python's int() and float() read it.
#pragma once

#include <cstdint>
#include <string_view>

namespace vitrine::chat {

enum class WholeText : uint8_t {
  kNone,      ///< no whole number
  kWhole,     ///< read
  kTooLarge,  ///< one beyond 64 bits
};

/// Decimal digits of any script, spaces around, a sign, single underscores, the prefix of its base.
/// `base`: 2 to 36, or 0, where the prefix says it.
WholeText parse_whole(std::string_view text, int64_t base, int64_t& out);
bool parse_float(std::string_view text, double& out);

}  // namespace vitrine::chat
