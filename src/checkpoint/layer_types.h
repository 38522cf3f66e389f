// SPDX-License-Identifier: Apache-2.0
// Fields that have a word for each layer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fields.h"

namespace vitrine::checkpoint {

/// Returns the words of such a field, each one of two; empty where there is none and `is_required`
/// is not set. Throws kBadFile for another number of them, kUnsupported for another word.
std::vector<std::string> read_layer_types(const Fields& fields, std::string_view name,
                                          int64_t layers, std::string_view one,
                                          std::string_view other, bool is_required = false);

}  // namespace vitrine::checkpoint
