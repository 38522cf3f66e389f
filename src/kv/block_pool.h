// SPDX-License-Identifier: Apache-2.0
// Blocks of keys and values: which are free, who shares them, and which positions of a sequence
// each one holds. The memory itself belongs to the engine; this room only numbers it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/block_store.h"
#include "kv/prefix_shape.h"
#include "kv/sequence_slots.h"
#include "kv/state_pool.h"
#include "vitrine/core.h"

namespace vitrine::kv {

/// One sequence: its length and its block tables. Tables and history stay at their addresses until
/// it is released or gives up its blocks.
struct SequenceBlocks {
  int64_t length = 0;
  std::span<int32_t> blocks;  // of layers that see all positions
  // Blocks of layers within a window (BlockPool says how); -1: given back.
  std::span<int32_t> window_blocks;
  std::span<int32_t> history;  // [length] the tokens so far
  int32_t adapter = -1;        // which its keys and values were made with; -1: none
};

/// The beginning of a sequence, which stays whether the sequence goes on or is released.
struct PrefixBlocks {
  int64_t length = 0;
  std::vector<int32_t> blocks;
  std::vector<int32_t> window_blocks;  // -1: it has none there
  // The lengths whose windows the window blocks hold, ascending; they have no slots.
  std::vector<HeldState> window_points;
  std::vector<int32_t> history;  // [length]
  int32_t adapter = -1;
  HeldState state = {};
  int64_t forced_end = 0;  // BlockPool::forced_end() of its positions
  uint64_t last_use = 0;   // when it was made, or a sequence last began with it
  uint64_t source = 0;     // the sequence that it was retained of
};

/// How much a pool has, once and for all.
struct PoolSizes {
  int64_t blocks = 0;
  int64_t block_size = 0;     // positions
  int64_t max_context = 0;    // of one sequence
  int64_t max_sequences = 0;  // live at once, those left out that gave up their blocks
  int64_t layers = 1;
  int64_t states = 0;  // slots for states; 0: the model has none
  // The most positions that a token sees in layers within a window, its own the last; 0: there are
  // no such layers.
  int64_t window = 0;
  int64_t window_blocks = 0;
  int64_t max_step_tokens = 1;
};

/// Returns the lowest block of a table that is read for positions from `length` on.
int64_t first_window_block(int64_t length, int64_t window, int64_t block_size);
/// Returns the most window blocks that a sequence needs at once while `tokens` of it are computed,
/// the one that it keeps below its window among them.
int64_t most_window_blocks(int64_t tokens, int64_t window, int64_t block_size);
/// Returns how many window blocks a step of so many tokens takes before it gives any back.
int64_t step_window_blocks(int64_t tokens, int64_t block_size);
/// Returns how many window blocks are enough for a pool of these sizes, with room for its
/// sequences' earlier windows.
int64_t enough_window_blocks(const PoolSizes& sizes);

/// Hands out fixed-size blocks with reference counts. Sequences grow without allocating. Not
/// thread-safe.
///
/// Layers within a window have blocks of their own and a second table, table_stride() entries
/// behind the first. A sequence needs the window blocks that its next token sees, and one block
/// below them; blocks below that go back to the pool when a step is over (settle). Where a prompt
/// or an answer ends, or kCheckpointDistance positions after the last such place, the sequence goes
/// on holding the blocks that were seen there, as a prefix does. Nobody needs these blocks: they
/// are asked back where a sequence that runs finds no block free, as states are where it finds no
/// slot. Prefixes give first, beginning with the one that was used least recently among those that
/// free something by themselves; so a step takes from no more prefixes than it needs blocks, and
/// what many share stays longest. Positions whose windows are gone have to be computed again from
/// the last ones whose windows are there (window_length).
class BlockPool {
 public:
  class Tally;

  /// `copy_block(from, to)` copies one block's keys and values in every layer that sees all
  /// positions, `copy_window_block` in every layer within a window (null where there are none).
  /// `copy_state` is StatePool's (null where there are no states).
  BlockPool(const PoolSizes& sizes, std::function<void(int32_t from, int32_t to)> copy_block,
            std::function<void(int32_t from, int32_t to)> copy_state = nullptr,
            std::function<void(int32_t from, int32_t to)> copy_window_block = nullptr);

  /// Returns the bytes that a pool of these sizes takes beside keys, values and states: its counts
  /// of blocks, and the tables and histories of sequences, as large as they get.
  static uint64_t bytes_of(const PoolSizes& sizes);
  uint64_t num_bytes() const {
    return full_.num_bytes() + windowed_.num_bytes() + slots_.num_bytes();
  }

  /// Makes an empty sequence. Throws kOutOfMemory where as many sequences live as may.
  uint64_t create(int32_t adapter = -1);
  /// Makes a sequence with the same past: full blocks are shared, a partial last block is copied.
  /// Throws kOutOfMemory where no block is free, or as create() does.
  uint64_t fork(uint64_t sequence);
  void truncate(uint64_t sequence, int64_t length);
  /// Keeps the first `count` of the positions that the last append() brought, and drops the others.
  void keep(uint64_t sequence, int64_t count);
  void release(uint64_t sequence);
  /// Returns the sequence. Throws kInvalidArgument where it is unknown.
  const SequenceBlocks& get(uint64_t sequence) const;

  /// Counts the blocks of a sequence's first `length` positions once more, the last one too where
  /// it is partly filled: whoever writes behind them copies it. Takes no block. Returns the
  /// prefix's number, which no sequence has.
  uint64_t retain(uint64_t sequence, int64_t length);
  /// Makes a sequence that begins with the first `length` positions of a prefix and shares its
  /// blocks. Takes no block. Throws kOutOfMemory as create() does.
  uint64_t attach(uint64_t prefix, int64_t length);
  void release_prefix(uint64_t prefix);
  /// Returns what a prefix is without its bytes; the blocks before `first_block` are left out.
  PrefixShape shape(uint64_t prefix, int64_t first_block) const;
  /// Makes a prefix of such a shape in blocks and slots that are free, whose bytes the caller
  /// writes; its first blocks are those of `parent`, where it leaves some out. Windows and states
  /// that nobody needs give way. Throws kOutOfMemory where there is no room, kInvalidArgument for a
  /// shape that does not fit this pool or the parent; nothing has changed then.
  uint64_t restore(const PrefixShape& shape, uint64_t parent);
  /// Returns the prefix. Throws kInvalidArgument where it is unknown.
  const PrefixBlocks& prefix(uint64_t prefix) const;

  /// Has `clear(windowed, block)` called for each block that is taken from now on, so that who
  /// reads a block out finds nothing of whom it belonged to before.
  void clear_taken(std::function<void(bool windowed, int32_t block)> clear) {
    clear_block_ = std::move(clear);
  }

  /// Makes room for `count` more positions; a shared last block is copied before it is written. The
  /// caller has checked that enough blocks are free (Tally) and that the context holds them. Does
  /// not change the length.
  void prepare(uint64_t sequence, int64_t count);
  /// Adds tokens to the sequence whose keys and values have been written.
  void append(uint64_t sequence, const int32_t* tokens, int64_t count);

  /// Puts the token at `position`, behind those before it, and drops what stood there and behind.
  void put(uint64_t sequence, int64_t position, int32_t token);

  static constexpr int32_t kNoBlock = -1;
  /// Takes a block for somebody who is no sequence, with a copy of what `copied` holds (kNoBlock:
  /// nothing). Throws kOutOfMemory where none is free.
  int32_t take_block(int32_t copied);
  void give_back(int32_t block) { full_.drop(block); }
  /// Puts these blocks, which were taken by take_block(), in the place of a sequence's blocks from
  /// its number `first` on, and drops those.
  void replace_blocks(uint64_t sequence, int64_t first, std::span<const int32_t> blocks);
  /// Do the same in layers within a window; a block is taken on behalf of a sequence that runs.
  int32_t take_window_block(uint64_t sequence, int32_t copied);
  void give_back_window_block(int32_t block);
  void replace_window_blocks(uint64_t sequence, int64_t first, std::span<const int32_t> blocks);
  /// Gives back blocks behind the sequence's positions, as put() left them.
  void trim(uint64_t sequence);

  bool has_states() const { return states_.num_slots() > 0; }
  /// Returns how many of a sequence's positions its state has taken in.
  int64_t state_length(uint64_t sequence) const { return look_up(sequence).state.length; }
  /// Makes the sequence the only holder of its state's slot, and returns that. Call it before a
  /// pass that takes `count` tokens into the state. Where there is room, the state as it is stays
  /// in another slot: with `keeps` until the next such call, and as one of the sequence's
  /// checkpoints where a prompt or an answer ends, or kCheckpointDistance positions after the last
  /// checkpoint.
  int32_t own_state(uint64_t sequence, int64_t count, bool keeps);
  /// Notes that the pass has taken in the tokens before this position.
  void set_state_length(uint64_t sequence, int64_t length);
  /// Gives up the state, which a pass that failed may have written in part.
  void lose_state(uint64_t sequence);
  /// Notes that positions before this one were computed with forced routes, so that no pass can
  /// make them again. The largest `end` stands.
  void set_forced_end(uint64_t sequence, int64_t end);
  int64_t forced_end(uint64_t sequence) const { return look_up(sequence).forced_end; }

  /// Returns how many of a sequence's positions a layer has keys and values of: all, where no step
  /// left layers out.
  int64_t layer_length(uint64_t sequence, int64_t layer) const;
  /// Gives each layer a length of its own, until all are equal again. Call it before a step of some
  /// layers.
  void hold_layers(uint64_t sequence);
  /// Notes that layers [first, end) have keys and values of so many positions.
  void set_layer_length(uint64_t sequence, int64_t first, int64_t end, int64_t length);
  /// Notes that a layer has keys and values of no position of any sequence. Throws
  /// kInvalidArgument while there are prefixes, which hold those of all layers.
  void forget_layer(int64_t layer);
  /// Returns the first layer that has fewer positions than the sequence; -1: there is none.
  int64_t first_lagging_layer(uint64_t sequence) const;

  bool has_windows() const { return windowed_.num_blocks() > 0; }
  /// Returns false where all layers are within a window.
  bool has_full_layers() const { return full_.num_blocks() > 0; }
  /// Returns how many of a sequence's positions layers within a window can go on from: all, or
  /// those that they were left with when positions were dropped.
  int64_t window_length(uint64_t sequence) const { return look_up(sequence).window_length; }
  /// Returns how many of the first `length` positions of a prefix a sequence that begins with these
  /// has at once; the others have to be computed again. Throws kInvalidArgument for an unknown
  /// prefix, or one of fewer positions.
  int64_t resumed_length(uint64_t prefix, int64_t length) const;
  /// Returns how many of its positions a sequence can go on from, with windows, state and blocks;
  /// the others have to be computed again before its next token.
  int64_t computed_length(uint64_t sequence) const;
  /// Makes room for a pass that computes `count` positions behind computed_length() again. The
  /// caller has checked that enough blocks are free.
  void prepare_again(uint64_t sequence, int64_t count);
  /// Notes that the pass has computed the positions before this one.
  void set_computed_length(uint64_t sequence, int64_t length);
  /// Gives up all blocks and states of a sequence, and its place among those that may live, so that
  /// another one may be made; it keeps its tokens. Throws kInvalidArgument where some layers have
  /// fewer positions than others.
  void give_up(uint64_t sequence);
  /// Gives a sequence its place again, before a step of it, and the blocks that a prefix retained
  /// of it still has: the longest one that the sequence begins with, of a model with states or
  /// windows one of all its tokens. Throws kOutOfMemory as create() does.
  void take_place(uint64_t sequence);
  /// Gives back the blocks below the window, when the last append()'s step is over. `keeps`: keep()
  /// may drop some of the step's positions, so what was seen before the step stays.
  void settle(uint64_t sequence, bool keeps);
  /// Returns the distance from a table's entry to that of the same positions in layers within a
  /// window.
  int64_t table_stride() const { return table_stride_; }
  /// Returns the entries of a sequence's tables together.
  int64_t table_entries() const { return table_stride_ * (has_windows() ? 2 : 1); }

  /// Returns the block that is given out when `index` others have been, as things stand; -1: there
  /// is none.
  int32_t next_free(size_t index) const { return full_.next_free(index); }
  int64_t num_free() const { return full_.num_free(); }
  int64_t num_blocks() const { return full_.num_blocks(); }
  /// Return the counts of layers within a window, where blocks that nobody needs count as free,
  /// too.
  int64_t num_free_window() const { return windowed_.num_unneeded(); }
  int64_t num_window_blocks() const { return windowed_.num_blocks(); }
  int64_t num_sequences() const { return slots_.num_taken(); }
  int64_t block_size() const { return sizes_.block_size; }
  int32_t references(int32_t block) const { return full_.references(block); }

 private:
  struct Sequence : SequenceBlocks {
    int32_t slot = -1;           // -1: it has no place
    std::vector<int32_t> apart;  // its tokens, where it has no place
    int64_t step_begin = 0;      // its length before the last append()
    bool lags = false;           // some layer has fewer positions: see layer_lengths_
    HeldState state;             // of its first positions, or of all of them
    HeldState kept;              // as it was before the last pass; without a slot there is none
    StateCheckpoints checkpoints;
    int64_t last_count = 0;  // tokens that the last pass took into the state
    int64_t forced_end = 0;
    // Positions that layers within a window have; its length where none are gone.
    int64_t window_length = 0;
    int64_t first_needed = 0;  // the first of the window blocks that are needed
    uint64_t last_use = 0;     // when it was made, or last made room
    // Positions that have blocks again since it gave up its blocks; -1: it has all.
    int64_t lost_from = -1;
    mutable uint64_t tally = 0;  // the last tally that it was added to
  };

  /// What a sequence without a place has at once when it gets one.
  struct Restored {
    const PrefixBlocks* prefix = nullptr;  // null: nothing
    int64_t length = 0;                    // its tokens, or those of its whole blocks
  };
  Restored restored_of(uint64_t sequence, const Sequence& found) const;
  void restore(Sequence& sequence, const Restored& restored);

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
  int32_t take_full();
  void set_blocks(Sequence& sequence, int64_t count);
  void set_length(Sequence& sequence, int64_t length);
  void set_tables(Sequence& sequence);
  void own_last_block(Sequence& sequence);
  static int32_t take_copy(BlockStore& store, int32_t own, int32_t copied,
                           const std::function<void(int32_t, int32_t)>& copy);
  HeldState best_state(const Sequence& sequence, int64_t length);
  HeldState best_earlier(const Sequence& sequence, int64_t length);
  void share_checkpoints(const Sequence& from, Sequence& to);
  void drop_states(Sequence& sequence);
  void cut_state(Sequence& sequence, int64_t length);
  static bool ends_turn(const Sequence& sequence, int64_t length, int64_t count);
  void free_state_slot(Sequence& runs);
  // The functions below stand in eviction.cc.
  int64_t full_length(const Sequence& sequence) const {
    return sequence.lost_from < 0 ? sequence.length : sequence.lost_from;
  }
  template <typename Gain>
  PrefixBlocks* stalest_prefix(Gain gain_of);
  void free_prefix_window();
  void free_prefix_state();
  void check_shape(const PrefixShape& shape, uint64_t parent) const;  // restored_prefix.cc
  template <typename Condition>
  Sequence* stalest_sequence(const Sequence& runs, Condition may_give);
  bool is_current_state(const Sequence& runs, int32_t slot) const;
  PrefixBlocks& find_prefix(uint64_t prefix) {
    return const_cast<PrefixBlocks&>(this->prefix(prefix));
  }
  int64_t first_seen(int64_t length) const {
    return first_window_block(length, sizes_.window, sizes_.block_size);
  }
  bool holds_window(std::span<const int32_t> blocks, int64_t length) const;
  bool holds_for_checkpoint(const Sequence& sequence, int64_t index) const;
  int64_t best_window(std::span<const int32_t> blocks, std::span<const HeldState> checkpoints,
                      int64_t length) const;
  void set_window_blocks(Sequence& sequence, int64_t count);
  void grow_window(Sequence& sequence, int64_t end);
  void own_last_window_block(Sequence& sequence);
  void move_window(Sequence& sequence, int64_t length);
  void cut_window(Sequence& sequence, int64_t length);
  void set_window(Sequence& sequence, int64_t length);
  int64_t first_kept(std::span<const int32_t> blocks, int64_t length) const;
  void share_window(Sequence& sequence, std::span<const int32_t> blocks, int64_t length,
                    int64_t first);
  void drop_window(Sequence& sequence);
  void trim_window(Sequence& sequence, int64_t count);
  void retain_window(const Sequence& sequence, PrefixBlocks& prefix);
  void attach_window(Sequence& sequence, const PrefixBlocks& prefix);
  void drop_window(PrefixBlocks& prefix);
  void drop_unheld(Sequence& sequence, int64_t begin, int64_t end);
  int32_t take_window_block(Sequence& runs);
  int64_t whole_length(const Sequence& sequence) const;
  int64_t blocks_for(int64_t positions) const {
    return (positions + sizes_.block_size - 1) / sizes_.block_size;
  }

  PoolSizes sizes_;
  int64_t table_stride_;
  std::function<void(int32_t, int32_t)> copy_block_, copy_window_block_;
  std::function<void(bool, int32_t)> clear_block_;  // none: blocks are taken as they are
  BlockStore full_, windowed_;
  SequenceSlots slots_;
  StatePool states_;
  std::vector<int64_t> layer_lengths_;  // [slots, layers], of sequences that lag
  std::unordered_map<uint64_t, Sequence> sequences_;
  std::unordered_map<uint64_t, PrefixBlocks> prefixes_;
  uint64_t next_sequence_ = 1;  // or prefix
  uint64_t uses_ = 0;           // so far, of sequences and prefixes
  mutable uint64_t last_tally_ = 0;
};

/// Counts the blocks that a step will take from the pool, input by input. Where inputs share a
/// partly filled last block, all but the last of them copy it. For a sequence whose windows are
/// gone, what it takes at most to compute them again counts, too. Allocates nothing. There is one
/// tally at a time, and the pool stays as it is meanwhile.
class BlockPool::Tally {
 public:
  explicit Tally(const BlockPool& pool);
  /// Adds an input of `count` tokens. Returns false where its sequence was added before. Throws
  /// kInvalidArgument for an unknown sequence.
  bool add(uint64_t sequence, int64_t count);
  int64_t blocks() const { return blocks_; }
  int64_t window_blocks() const;

 private:
  void add_window(const Sequence& sequence, int64_t count);

  const BlockPool& pool_;
  int64_t blocks_ = 0;
  int64_t step_window_blocks_ = 0;
  int64_t again_window_blocks_ = 0;  // before the step, more than are given back
  bool runs_again_ = false;
};

}  // namespace vitrine::kv
