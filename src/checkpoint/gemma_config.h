// SPDX-License-Identifier: Apache-2.0
// Private to the room: the fields of Gemma 4's text models.
#pragma once

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

bool is_gemma(const ModelConfig& config);

/// Reads heads, windows, rotary parameters, feed-forward blocks and what else the family has.
/// Throws kBadFile and kUnsupported naming the field.
void read_gemma(const Fields& fields, ModelConfig& config);

}  // namespace vitrine::checkpoint
