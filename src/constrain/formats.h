// SPDX-License-Identifier: Apache-2.0
// The languages behind JSON Schema's `format`.
#pragma once

#include <string_view>

#include "regex_pool.h"

namespace vitrine::constrain {

/// The texts of a format; kEmptyNode for a name that is not known (it only annotates then).
NodeId format_language(RegexPool& pool, std::string_view name);

}  // namespace vitrine::constrain
