// SPDX-License-Identifier: Apache-2.0
// KV blocks: which are free, who shares them, and which positions of a sequence each one holds.
// The memory itself belongs to the engine; this room only numbers it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/sequence_slots.h"
#include "kv/state_pool.h"
#include "vitrine/core.h"

namespace vitrine::kv {

/// One sequence: its length and its block table. Table and history stay at their addresses as long
/// as it lives.
struct SequenceBlocks {
  int64_t length = 0;
  std::span<int32_t> blocks;
  std::span<int32_t> history;  // [length] the tokens so far
  int32_t adapter = -1;        // which its keys and values were made with; -1: none
};

/// The beginning of a sequence, which stays when that goes on or goes.
struct PrefixBlocks {
  int64_t length = 0;
  std::vector<int32_t> blocks;
  std::vector<int32_t> history;  // [length]
  int32_t adapter = -1;
  HeldState state = {};
  int64_t forced_end = 0;  // as a sequence has it
};

/// How much a pool has, once and for all.
struct PoolSizes {
  int64_t blocks = 0;
  int64_t block_size = 0;     // positions
  int64_t max_context = 0;    // of one sequence
  int64_t max_sequences = 0;  // live at once
  int64_t layers = 1;
  int64_t states = 0;  // slots for states; 0: the model has none
};

/// Hands out fixed-size blocks with reference counts. Sequences grow without allocating. Not
/// thread-safe.
class BlockPool {
 public:
  class Tally;

  /// `copy_block(from, to)` copies one block's keys and values in every layer.
  /// `copy_state`: StatePool's; null where there are no states.
  BlockPool(const PoolSizes& sizes, std::function<void(int32_t from, int32_t to)> copy_block,
            std::function<void(int32_t from, int32_t to)> copy_state = nullptr);

  /// Throws kOutOfMemory where as many sequences live as may.
  uint64_t create(int32_t adapter = -1);
  /// Full blocks are shared; a partial last block is copied. Throws kOutOfMemory where none is
  /// free, or as create() does.
  uint64_t fork(uint64_t sequence);
  void truncate(uint64_t sequence, int64_t length);
  /// Of the positions that the last append() brought, the first `count` stay.
  void keep(uint64_t sequence, int64_t count);
  void release(uint64_t sequence);
  /// Throws kInvalidArgument for an unknown sequence.
  const SequenceBlocks& get(uint64_t sequence) const;

  /// Counts the blocks of a sequence's first `length` positions once more, the last one too where
  /// it is partly filled: whoever writes behind them copies it. Takes no block. The number is one
  /// that no sequence has.
  uint64_t retain(uint64_t sequence, int64_t length);
  /// A new sequence that begins with so much of a prefix and shares its blocks. Takes no block.
  /// Throws kOutOfMemory as create() does.
  uint64_t attach(uint64_t prefix, int64_t length);
  void release_prefix(uint64_t prefix);
  /// Throws kInvalidArgument for an unknown prefix.
  const PrefixBlocks& prefix(uint64_t prefix) const;

  /// Makes room; a shared last block is copied before it is written. The caller has checked that
  /// enough blocks are free (Tally) and that the context holds it. Does not change the length.
  void prepare(uint64_t sequence, int64_t count);
  /// The tokens have been written.
  void append(uint64_t sequence, const int32_t* tokens, int64_t count);

  /// The token stands at `position`, behind those before it, and nothing behind it.
  void put(uint64_t sequence, int64_t position, int32_t token);

  static constexpr int32_t kNoBlock = -1;
  /// A block for somebody who is no sequence, with a copy of what `copied` holds (kNoBlock:
  /// nothing). Throws kOutOfMemory where none is free.
  int32_t take_block(int32_t copied);
  void give_back(int32_t block) { drop(block); }
  /// A sequence's blocks from its number `first` on become these, which were taken by
  /// take_block(); those that it had go.
  void replace_blocks(uint64_t sequence, int64_t first, std::span<const int32_t> blocks);
  /// Entries of a table.
  int64_t table_entries() const;

  bool has_states() const { return states_.num_slots() > 0; }
  /// How many of a sequence's positions its state has taken in.
  int64_t state_length(uint64_t sequence) const { return look_up(sequence).state.length; }
  /// Before a pass that takes `count` tokens into its state: returns the slot, which the sequence
  /// alone holds then. The state as it is stays beside it where there is room: with `keeps` until
  /// the next such call; and where a prompt or an answer ends, or kCheckpointDistance positions
  /// after the last time, as one of the sequence's checkpoints.
  int32_t own_state(uint64_t sequence, int64_t count, bool keeps);
  /// The pass has taken in the tokens before this position.
  void set_state_length(uint64_t sequence, int64_t length);
  /// A pass that failed may have written some of it.
  void lose_state(uint64_t sequence);
  /// Positions before this one were computed with routes that were forced: no pass makes them
  /// again. The largest one stands.
  void set_forced_end(uint64_t sequence, int64_t end);
  int64_t forced_end(uint64_t sequence) const { return look_up(sequence).forced_end; }

  /// How many of a sequence's positions a layer has keys and values of: all, where no step left
  /// layers out.
  int64_t layer_length(uint64_t sequence, int64_t layer) const;
  /// Before a step of some layers: from now on each has its own number, until all are equal again.
  void hold_layers(uint64_t sequence);
  /// Layers [first, end) have those of so many positions.
  void set_layer_length(uint64_t sequence, int64_t first, int64_t end, int64_t length);
  /// The first layer that has fewer positions than the sequence; -1: there is none.
  int64_t first_lagging_layer(uint64_t sequence) const;

  /// The block that is given out when `index` others have been, as things stand; -1: there is none.
  int32_t next_free(size_t index) const {
    return index < free_.size() ? free_[free_.size() - 1 - index] : -1;
  }
  int64_t num_free() const { return static_cast<int64_t>(free_.size()); }
  int64_t num_blocks() const { return static_cast<int64_t>(references_.size()); }
  int64_t num_sequences() const { return slots_.num_taken(); }
  int64_t block_size() const { return sizes_.block_size; }
  int32_t references(int32_t block) const { return references_[static_cast<size_t>(block)]; }

 private:
  struct Sequence : SequenceBlocks {
    int32_t slot = -1;
    int64_t step_begin = 0;  // its length before the last append()
    bool lags = false;       // some layer has fewer positions: see layer_lengths_
    HeldState state;         // of its beginning, at most of all of it
    HeldState kept;          // of before the last pass; without a slot there is none
    StateCheckpoints checkpoints;
    int64_t last_count = 0;  // tokens that the last pass took into the state
    int64_t forced_end = 0;
    mutable uint64_t tally = 0;  // the last one that it was added to
  };
  // Of a block in a tally: how many of those that share it will have made their own copy.
  struct Leavers {
    uint64_t tally = 0;
    int32_t count = 0;
  };

  const Sequence& look_up(uint64_t sequence) const;
  std::span<int64_t> layer_lengths(const Sequence& sequence) {
    return std::span(layer_lengths_)
        .subspan(static_cast<size_t>(sequence.slot * sizes_.layers),
                 static_cast<size_t>(sizes_.layers));
  }
  Sequence& find(uint64_t sequence) { return const_cast<Sequence&>(look_up(sequence)); }
  void require_slot() const;
  bool is_partial(const SequenceBlocks& blocks) const {
    return blocks.length % sizes_.block_size != 0;
  }
  uint64_t create_with(std::span<const int32_t> blocks, std::span<const int32_t> history,
                       int32_t adapter);
  void set_blocks(Sequence& sequence, int64_t count);
  void set_length(Sequence& sequence, int64_t length);
  void own_last_block(Sequence& sequence);
  HeldState best_state(const Sequence& sequence, int64_t length);
  HeldState best_earlier(const Sequence& sequence, int64_t length);
  void share_checkpoints(const Sequence& from, Sequence& to);
  void drop_states(Sequence& sequence);
  void cut_state(Sequence& sequence, int64_t length);
  bool ends_turn(const Sequence& sequence, int64_t count) const;
  void free_state_slot(Sequence& runs);
  int32_t take();
  void drop(int32_t block);
  int64_t blocks_for(int64_t positions) const {
    return (positions + sizes_.block_size - 1) / sizes_.block_size;
  }

  PoolSizes sizes_;
  std::function<void(int32_t, int32_t)> copy_block_;
  std::vector<int32_t> references_;  // by block
  std::vector<int32_t> free_;
  SequenceSlots slots_;
  StatePool states_;
  std::vector<int64_t> layer_lengths_;  // [slots, layers], of sequences that lag
  std::unordered_map<uint64_t, Sequence> sequences_;
  std::unordered_map<uint64_t, PrefixBlocks> prefixes_;
  uint64_t next_sequence_ = 1;            // or prefix
  mutable std::vector<Leavers> leavers_;  // by block
  mutable uint64_t last_tally_ = 0;
};

/// The blocks that a step will take from the pool, input by input: of those that share a partly
/// filled last block all but the last copy it. Allocates nothing. One at a time, and the pool stays
/// as it is meanwhile.
class BlockPool::Tally {
 public:
  explicit Tally(const BlockPool& pool);
  /// Throws kInvalidArgument for an unknown sequence. False: it was added before.
  bool add(uint64_t sequence, int64_t count);
  int64_t blocks() const { return blocks_; }

 private:
  const BlockPool& pool_;
  int64_t blocks_ = 0;
};

}  // namespace vitrine::kv
