// SPDX-License-Identifier: Apache-2.0
// How many blocks of keys and values an engine has, by the bytes that it is given for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Bytes of one block of all layers, keys and values. The options name codecs and block length.
uint64_t kv_block_bytes(const EngineOptions& options, const ModelConfig& config);

/// Slots for states of sequences: one for each that may live, and as many and two for earlier
/// states; 0 where the model keeps none.
int64_t num_states(const EngineOptions& options, const ModelConfig& config);
/// Bytes of all of them, in all layers.
uint64_t state_bytes(const EngineOptions& options, const ModelConfig& config);

/// Turns kv_bytes into what states and its whole blocks take (0: each of max_sequences can reach
/// max_context), and lowers max_context to what they hold. Throws kInvalidArgument for less than
/// one block, kOutOfMemory for more than an address reaches.
void resolve_kv_budget(EngineOptions& options, const ModelConfig& config);

/// The blocks of a resolved budget.
int64_t num_kv_blocks(const EngineOptions& options, const ModelConfig& config);

/// The budget of several models whose sequences grow together, as many positions for each: by
/// model; 0 stays 0. Throws kInvalidArgument where it is less than a block of each.
std::vector<uint64_t> split_kv_bytes(const EngineOptions& options,
                                     std::span<const ModelConfig> configs);

}  // namespace vitrine::engine
