// SPDX-License-Identifier: Apache-2.0
// Private to the room: what its files share for messages and guarded JSON.
#pragma once

#include <string>
#include <vector>

#include "core/json_text.h"
#include "vitrine/core.h"

namespace vitrine::checkpoint {

/// "[8, 128, 64]", cut after 16 extents.
std::string shape_text(const std::vector<int64_t>& shape);

/// "1 to 8".
std::string range_text(int64_t low, int64_t high);

[[noreturn]] void throw_bad_file(const std::string& message);
[[noreturn]] void throw_unsupported(const std::string& message);

}  // namespace vitrine::checkpoint
