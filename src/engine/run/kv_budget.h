// SPDX-License-Identifier: Apache-2.0
// Finds out how many blocks of keys and values an engine has, by the bytes that it is given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/block_pool.h"
#include "ops/graph.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Bytes of a block of one layer.
struct BlockPlanes {
  uint64_t keys = 0, values = 0;
  uint64_t sum() const { return keys + values; }
};

/// Returns the bytes of one block of a layer; none where the layer reads others' keys and values,
/// or keeps a state. In a codec that gives tiles the two planes are the closed and the open form.
/// The options name codecs and block length. Throws kOutOfMemory where a plane has more bytes than
/// an address reaches.
BlockPlanes layer_block_bytes(const EngineOptions& options, const ops::Graph& graph, int layer);
/// Returns how many of these are open forms of blocks that are closed later.
uint64_t layer_open_bytes(const EngineOptions& options, const ops::Graph& graph, int layer);

/// Returns the bytes of one block of all layers. Throws as layer_block_bytes() does.
uint64_t kv_block_bytes(const EngineOptions& options, const ops::Graph& graph);

/// Returns how many slots there are for states of sequences: EngineOptions::max_states, or one for
/// each that may live, and as many and two for earlier states; 0 where the model keeps none.
int64_t num_states(const EngineOptions& options, const ops::Graph& graph);
/// Returns the bytes of all of them, in all layers.
uint64_t state_bytes(const EngineOptions& options, const ops::Graph& graph);

/// Says how many blocks layers have.
struct KvBlocks {
  int64_t full = 0;                    // of layers that see all positions
  int64_t windowed = 0;                // of those within a window, and of open forms of blocks that
                                       // are closed later; 0: all layers have `full`
  int64_t window = 0;                  // positions that these see at most
  std::vector<bool> is_windowed = {};  // by layer; empty where none has blocks of its own
};

/// Returns EngineOptions::kv_bytes without the drafters' part; 0 where kv_bytes is not given.
/// Throws kOutOfMemory where nothing is left.
uint64_t own_kv_bytes(const EngineOptions& options);

/// Turns kv_bytes into what drafters, states and its whole blocks take (0: each of max_sequences
/// can reach max_context), and lowers max_context to what they hold. Throws kInvalidArgument for
/// less than one block, kOutOfMemory where drafters leave less, and for more than an address
/// reaches.
void resolve_kv_budget(EngineOptions& options, const ops::Graph& graph);

/// Return the blocks of a resolved budget, and the sizes of a pool of them.
KvBlocks find_kv_blocks(const EngineOptions& options, const ops::Graph& graph);
kv::PoolSizes pool_sizes(const EngineOptions& options, const ops::Graph& graph,
                         const KvBlocks& blocks);

/// Returns the sizes of a pool that nobody will use.
kv::PoolSizes no_pool(const EngineOptions& options);
/// Adds to a summary what a context takes that an executor did not make.
void add_context(const EngineOptions& options, const ops::Graph& graph, const KvBlocks& blocks,
                 ModelSummary& summary);

/// Returns, by model, the budget of several models whose sequences grow together, which holds as
/// many positions for each; 0 stays 0. Throws kInvalidArgument where it is less than a block of
/// each.
std::vector<uint64_t> split_kv_bytes(const EngineOptions& options,
                                     std::span<const ops::Graph> graphs);

}  // namespace vitrine::engine
