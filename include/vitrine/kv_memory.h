// SPDX-License-Identifier: Apache-2.0
// The room `engine`: what a model's keys, values and states take.
#pragma once

#include <cstdint>
#include <vector>

#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"

namespace vitrine {

/// What layers of one kind have of EngineOptions::kv_bytes.
struct KvMemory {
  int layers = 0;         ///< that keep keys and values, or states, of their own
  int64_t window = 0;     ///< positions that a token sees there at most; 0: all
  int64_t positions = 0;  ///< whose keys and values there is room for; 0: the layers keep states
  int64_t states = 0;     ///< of sequences, earlier ones among them
  uint64_t bytes = 0;     ///< of all these layers
};

/// Returns the kinds of layers that a model has, those that see all positions first, states last;
/// their bytes are together what Engine::load takes for kv_bytes (on the reference path a block
/// more). Layers within a window stand alone where they give back the blocks below it, which they
/// do on the CPU's fused kernels where the context is longer than what their sequences need at
/// once. Throws what Engine::describe() throws for a config or options that cannot run.
VITRINE_API std::vector<KvMemory> kv_memory(const Checkpoint& checkpoint,
                                            const EngineOptions& options);

/// Returns the longest max_context, up to the model's own limit, with which what grows with the
/// context (ModelSummary::kv_bytes and table_bytes) takes at most so many bytes on the CPU; the
/// other options are as given. 0: not one position does. Throws as kv_memory() does.
VITRINE_API int64_t longest_context(const Checkpoint& checkpoint, const EngineOptions& options,
                                    uint64_t bytes);

}  // namespace vitrine
