// SPDX-License-Identifier: Apache-2.0
// Private to the room: fields of LFM2 with experts (lfm2_moe), and how it names others'.
#pragma once

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

bool is_lfm(const ModelConfig& config);

/// Which layers are convolutions, and what these are. Throws kBadFile, kUnsupported naming the
/// field.
void read_convolutions(const Fields& fields, ModelConfig& config);

}  // namespace vitrine::checkpoint
