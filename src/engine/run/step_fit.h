// SPDX-License-Identifier: Apache-2.0
// Whether there is room for a step.
#pragma once

#include <span>

#include "kv/block_pool.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// What a step would take, and what there is; of blocks those of the layers that have the least
/// left, all or those within a window. Allocates nothing. Throws kInvalidArgument for a
/// sequence that is unknown, or stands twice.
StepFit measure_step(std::span<const StepInput> inputs, const kv::BlockPool& pool,
                     const EngineOptions& options);

/// Throws kInvalidArgument, and kOutOfMemory for blocks, where it does not fit. Of a full context
/// the caller has spoken.
void require_fit(const StepFit& fit);

}  // namespace vitrine::engine
