// SPDX-License-Identifier: Apache-2.0
// What the readers of a schema's keywords share.
#pragma once

#include <cstdint>
#include <string>

#include "json_value.h"

namespace vitrine::constrain {

[[noreturn]] void malformed(const std::string& pointer, const std::string& what);
[[noreturn]] void unsupported(const std::string& pointer, const std::string& what);

/// A whole number from 0 (5.0 is one), above 4,000,000,000 cut there; `fallback` where the key is
/// missing.
uint32_t read_count(const JsonValue& json, const char* key, const std::string& pointer,
                    uint32_t fallback);

}  // namespace vitrine::constrain
