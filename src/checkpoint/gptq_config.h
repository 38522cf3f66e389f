// SPDX-License-Identifier: Apache-2.0
// Private to the room: what the configs of GPTQ and AutoRound have in common.
#pragma once

#include "name_pattern.h"
#include "quantization_config.h"

namespace vitrine::checkpoint {

/// Takes `bits` (2 to 8), `group_size` and `sym` where they are there. Throws kBadFile,
/// kUnsupported.
void read_gptq_bits(const Fields& fields, QuantizedModule& scheme);

}  // namespace vitrine::checkpoint
