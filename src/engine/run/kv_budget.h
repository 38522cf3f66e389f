// SPDX-License-Identifier: Apache-2.0
// How many blocks of keys and values an engine has, by the bytes that it is given for them.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "ops/graph.h"
#include "vitrine/checkpoint.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Bytes of one block of all layers, keys and values. The options name codecs and block length.
uint64_t kv_block_bytes(const EngineOptions& options, const ModelConfig& config);

/// Those of one layer alone; kNoAddress where it has more bytes than that.
uint64_t layer_block_bytes(const EngineOptions& options, const ModelConfig& config, int64_t layer);
/// Of these, the open forms of blocks that are closed later.
uint64_t layer_open_bytes(const EngineOptions& options, const ModelConfig& config, int64_t layer);
inline constexpr uint64_t kNoAddress = std::numeric_limits<uint64_t>::max();

/// Slots for states of sequences: EngineOptions::max_states, or one for each that may live, and as
/// many and two for earlier states; 0 where the model keeps none.
int64_t num_states(const EngineOptions& options, const ModelConfig& config);
/// Bytes of all of them, in all layers.
uint64_t state_bytes(const EngineOptions& options, const ModelConfig& config);

/// How many blocks layers have.
struct KvBlocks {
  int64_t full = 0;                    // of layers that see all positions
  int64_t windowed = 0;                // of those within a window, and of open forms of blocks that
                                       // are closed later; 0: all layers have `full`
  int64_t window = 0;                  // positions that these see at most
  std::vector<bool> is_windowed = {};  // by layer; empty where none has blocks of its own
};

/// Turns kv_bytes into what states and its whole blocks take (0: each of max_sequences can reach
/// max_context), and lowers max_context to what they hold. Throws kInvalidArgument for less than
/// one block, kOutOfMemory for more than an address reaches.
void resolve_kv_budget(EngineOptions& options, const ModelConfig& config, const ops::Graph& graph);

/// The blocks of a resolved budget, and a pool of them.
KvBlocks find_kv_blocks(const EngineOptions& options, const ModelConfig& config,
                        const ops::Graph& graph);
kv::PoolSizes pool_sizes(const EngineOptions& options, const ModelConfig& config,
                         const KvBlocks& blocks);

/// A pool that nobody will use.
kv::PoolSizes no_pool(const EngineOptions& options);
/// Adds to a summary what a context takes that an executor did not make.
void add_context(const EngineOptions& options, const ModelConfig& config, const KvBlocks& blocks,
                 ModelSummary& summary);

/// The budget of several models whose sequences grow together, as many positions for each: by
/// model; 0 stays 0. Throws kInvalidArgument where it is less than a block of each.
std::vector<uint64_t> split_kv_bytes(const EngineOptions& options,
                                     std::span<const ModelConfig> configs);

}  // namespace vitrine::engine
