// SPDX-License-Identifier: Apache-2.0
// Private to the room: the rotary part of config.json.
#pragma once

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Reads rope_theta and rope_scaling of `config`, whose sizes are set already. Throws kBadFile, or
/// kUnsupported for a kind of scaling that Vitrine can't run.
void read_rope(const Fields& fields, ModelConfig& config);

}  // namespace vitrine::checkpoint
