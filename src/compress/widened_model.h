// SPDX-License-Identifier: Apache-2.0
// Private to the room: a model of 8-bit floats in 16 bits, so that an engine can run it while its
// layers are replaced.
#pragma once

#include <string>

#include "plan.h"
#include "progress.h"

namespace vitrine::compress {

/// Whether an engine would keep matrices that the plan quantizes in 8 bits.
bool has_float8_layers(const QuantizePlan& plan);

/// Writes the model that the plan is of into a folder, its 8-bit floats times their scales in the
/// planned dtype. Throws kIo, and what reading the source throws.
void write_widened(const Checkpoint& checkpoint, const QuantizePlan& plan, ProgressTeller& progress,
                   const std::string& folder);

}  // namespace vitrine::compress
