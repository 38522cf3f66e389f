// SPDX-License-Identifier: Apache-2.0
// Private to the room: what the configs of GPTQ and AutoRound have in common.
#pragma once

#include "name_pattern.h"
#include "quantization_config.h"

namespace vitrine::checkpoint {

/// Names what turns a folder in the order of a GPU kernel into one that loads.
inline constexpr const char* kWriteGptqAgain =
    "GPTQModel to write it again (GPTQModel.load(FOLDER, backend=BACKEND.TORCH), then save with "
    "format 'gptq_v2'), or the float model quantized";

/// Takes `bits` (2 to 8), `group_size` and `sym` where they are there. Throws kBadFile,
/// kUnsupported.
void read_gptq_bits(const Fields& fields, QuantizedModule& scheme);
/// Refuses a config without `bits` or `group_size`.
void require_gptq_bits(const Fields& fields);

}  // namespace vitrine::checkpoint
