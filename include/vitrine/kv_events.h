// SPDX-License-Identifier: Apache-2.0
// The room `serve`: which blocks of ids a server's prompts can begin with, for routers of fleets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// What became of whole blocks of ids whose keys and values are kept for later prompts.
struct KvBlockEvent {
  /// What it is.
  enum class Kind : uint8_t {
    kStored,   ///< prompts can begin with them from now on
    kRemoved,  ///< they gave way
    kCleared,  ///< none is left
  };
  Kind kind = Kind::kStored;  ///< what it is
  /// The blocks by their names: of kStored each behind the one before it, of kRemoved each before
  /// the one that it stood behind. A name is a hash of all ids up to the block's end, of the
  /// adapter and of the tenant, where tenants share nothing: the same in every process, and never
  /// 0. It is made thus: SHA-256's first 8 bytes, the highest first, of the name before it (8
  /// bytes, the lowest first) and the block's ids (4 bytes each, the lowest first). Before the
  /// first block stands the same of "vitrine kv blocks", a zero byte, the adapter's name, a zero
  /// byte and the tenant.
  std::vector<uint64_t> blocks = {};
  uint64_t parent = 0;               ///< of kStored: the block before the first one; 0: none is
  std::vector<int32_t> tokens = {};  ///< of kStored: [blocks, block_size] their ids
  int64_t block_size = 0;            ///< of kStored: ids of a block
  int adapter = -1;                  ///< of kStored: of EngineOptions::adapters; -1: none
  std::string adapter_name = {};     ///< of kStored: what requests call it; empty: none
};

/// Hears of a server's blocks (ServerOptions::block_listener). It learns ids of all tenants'
/// prompts and answers.
class VITRINE_API KvBlockListener {
 public:
  virtual ~KvBlockListener() = default;
  /// Takes what has changed since the last call, in its order. Called between two steps of a model
  /// (NamedModel::name), on the steps' thread, so it returns at once: what takes long is for a
  /// thread of its own. False: it has no room, and what it was told is lost. About a second later
  /// it is told kCleared and all blocks that there are then, as far as steps go on.
  virtual bool on_blocks(const std::string& model, std::vector<KvBlockEvent> events) noexcept = 0;
};

}  // namespace vitrine
