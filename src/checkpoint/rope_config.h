// SPDX-License-Identifier: Apache-2.0
// Reader of the rotary part of config.json.
#pragma once

#include "fields.h"
#include "model_config.h"

namespace vitrine::checkpoint {

/// Reads rope_theta and rope_scaling of `config`, whose heads' width is set already.
/// `rotates_part`: the family may rotate a part of each head alone. Throws kBadFile, or
/// kUnsupported for a kind of scaling that Vitrine can't run.
void read_rope(const Fields& fields, ModelConfig& config, bool rotates_part = false);

}  // namespace vitrine::checkpoint
