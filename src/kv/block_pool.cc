// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <algorithm>
#include <utility>

namespace vitrine::kv {

namespace {

// A table has an entry to spare: a pass may ask for a block that its context does not use.
int64_t entries_of_table(const PoolSizes& sizes) {
  return (sizes.max_context + sizes.block_size - 1) / sizes.block_size + 1;
}

int64_t tables_of(const PoolSizes& sizes) { return sizes.window_blocks > 0 ? 2 : 1; }

void require_length(uint64_t name, const PrefixBlocks& prefix, int64_t length) {
  if (length >= 0 && length <= prefix.length) return;
  throw Error(ErrorKind::kInvalidArgument,
              "prefix " + std::to_string(name) + " cannot begin a sequence with " +
                  std::to_string(length) + " positions; expected 0 to " +
                  std::to_string(prefix.length));
}

}  // namespace

BlockPool::BlockPool(const PoolSizes& sizes, std::function<void(int32_t, int32_t)> copy_block,
                     std::function<void(int32_t, int32_t)> copy_state,
                     std::function<void(int32_t, int32_t)> copy_window_block)
    : sizes_(sizes),
      table_stride_(entries_of_table(sizes)),
      copy_block_(std::move(copy_block)),
      copy_window_block_(std::move(copy_window_block)),
      full_(sizes.blocks),
      windowed_(sizes.window_blocks),
      slots_(sizes.max_sequences, table_stride_ * tables_of(sizes), sizes.max_context),
      states_(sizes.states, std::move(copy_state)),
      layer_lengths_(static_cast<size_t>(sizes.max_sequences * sizes.layers)) {
  sequences_.reserve(static_cast<size_t>(sizes.max_sequences));
}

uint64_t BlockPool::bytes_of(const PoolSizes& sizes) {
  return BlockStore::bytes_of(sizes.blocks) + BlockStore::bytes_of(sizes.window_blocks) +
         SequenceSlots::bytes_of(sizes.max_sequences, entries_of_table(sizes) * tables_of(sizes),
                                 sizes.max_context);
}

uint64_t BlockPool::create(int32_t adapter) {
  require_slot();
  Sequence& created = sequences_[next_sequence_];
  created.adapter = adapter;
  created.slot = slots_.take();
  created.last_use = ++uses_;
  set_blocks(created, 0);
  set_window_blocks(created, 0);
  set_length(created, 0);
  return next_sequence_++;
}

uint64_t BlockPool::fork(uint64_t sequence) {
  const Sequence& source = look_up(sequence);
  require_slot();
  const bool copies_window = has_windows() && source.window_length % sizes_.block_size != 0;
  const bool copies_block = is_partial(source) && has_full_layers() && source.lost_from < 0;
  if ((copies_block && num_free() == 0) || (copies_window && num_free_window() == 0)) {
    throw Error(ErrorKind::kOutOfMemory,
                "no KV block is free to fork sequence " + std::to_string(sequence) +
                    "; release a sequence or load the engine with more kv_bytes");
  }
  const uint64_t copy = create_with(source.blocks, source.history, source.adapter);
  Sequence& target = find(copy);
  target.lags = source.lags;
  target.state = states_.share(source.state);
  share_checkpoints(source, target);
  share_window(target, source.window_blocks, source.window_length, source.first_needed);
  target.forced_end = source.forced_end;
  if (source.lags) std::ranges::copy(layer_lengths(source), layer_lengths(target).begin());
  target.lost_from = source.lost_from;
  try {
    if (copies_block) own_last_block(target);
    if (copies_window) own_last_window_block(target);
  } catch (...) {
    release(copy);
    throw;
  }
  return copy;
}

uint64_t BlockPool::create_with(std::span<const int32_t> blocks, std::span<const int32_t> history,
                                int32_t adapter) {
  const uint64_t created = create(adapter);
  Sequence& target = find(created);
  set_blocks(target, std::ssize(blocks));
  set_length(target, std::ssize(history));
  target.step_begin = target.length;
  std::ranges::copy(blocks, target.blocks.begin());
  std::ranges::copy(history, target.history.begin());
  for (const int32_t block : blocks) full_.share(block);
  return created;
}

void BlockPool::truncate(uint64_t sequence, int64_t length) {
  Sequence& found = find(sequence);
  if (length < 0 || length > found.length) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " cannot be truncated to " +
                    std::to_string(length) + "; expected 0 to " + std::to_string(found.length));
  }
  const int64_t kept = std::min(blocks_for(length), std::ssize(found.blocks));
  for (int64_t i = std::ssize(found.blocks) - 1; i >= kept; --i) {
    full_.drop(found.blocks[static_cast<size_t>(i)]);
  }
  set_blocks(found, kept);
  set_length(found, length);
  found.step_begin = std::min(found.step_begin, length);
  if (found.lost_from >= length) found.lost_from = -1;
  cut_state(found, length);
  cut_window(found, length);
  if (!found.lags) return;
  const std::span<int64_t> lengths = layer_lengths(found);
  for (int64_t& of_layer : lengths) of_layer = std::min(of_layer, length);
  found.lags = std::ranges::any_of(lengths, [&](int64_t of) { return of < length; });
}

int64_t BlockPool::layer_length(uint64_t sequence, int64_t layer) const {
  const Sequence& found = look_up(sequence);
  if (!found.lags) return found.length;
  return layer_lengths_[static_cast<size_t>(found.slot * sizes_.layers + layer)];
}

void BlockPool::hold_layers(uint64_t sequence) {
  take_place(sequence);
  Sequence& found = find(sequence);
  if (!found.lags) std::ranges::fill(layer_lengths(found), found.length);
  found.lags = true;
}

void BlockPool::set_layer_length(uint64_t sequence, int64_t first, int64_t end, int64_t length) {
  Sequence& found = find(sequence);
  const std::span<int64_t> lengths = layer_lengths(found);
  std::ranges::fill(lengths.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)),
                    length);
  found.lags = std::ranges::any_of(lengths, [&](int64_t of) { return of < found.length; });
}

void BlockPool::forget_layer(int64_t layer) {
  if (!prefixes_.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "keys and values of layer " + std::to_string(layer) + " stand in " +
                    std::to_string(prefixes_.size()) +
                    " prefixes; release these before the layer is forgotten");
  }
  for (const auto& [id, sequence] : sequences_) {
    if (sequence.slot < 0) continue;  // its keys and values are gone as it is
    hold_layers(id);
    set_layer_length(id, layer, layer + 1, 0);
  }
}

int64_t BlockPool::first_lagging_layer(uint64_t sequence) const {
  const Sequence& found = look_up(sequence);
  for (int64_t layer = 0; found.lags && layer < sizes_.layers; ++layer) {
    if (layer_length(sequence, layer) < found.length) return layer;
  }
  return -1;
}

void BlockPool::keep(uint64_t sequence, int64_t count) {
  const Sequence& found = look_up(sequence);
  const int64_t added = found.length - found.step_begin;
  if (count < 0 || count > added) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " cannot keep " + std::to_string(count) +
                    " positions of its last step; expected 0 to " + std::to_string(added));
  }
  truncate(sequence, found.step_begin + count);
}

void BlockPool::release(uint64_t sequence) {
  Sequence& found = find(sequence);
  drop_states(found);
  drop_window(found);
  for (const int32_t block : found.blocks) full_.drop(block);
  if (found.slot >= 0) slots_.give_back(found.slot);
  sequences_.erase(sequence);
}

uint64_t BlockPool::retain(uint64_t sequence, int64_t length) {
  const Sequence& found = look_up(sequence);
  const int64_t whole = std::min(whole_length(found), full_length(found));
  if (length < 0 || length > whole) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " has no prefix of " +
                    std::to_string(length) + " positions; expected 0 to " + std::to_string(whole));
  }
  const int64_t held = has_full_layers() ? blocks_for(length) : 0;
  const auto blocks = found.blocks.first(static_cast<size_t>(held));
  const auto history = found.history.first(static_cast<size_t>(length));
  PrefixBlocks& prefix = prefixes_[next_sequence_];
  prefix.length = length;
  prefix.blocks.assign(blocks.begin(), blocks.end());
  prefix.history.assign(history.begin(), history.end());
  prefix.adapter = found.adapter;
  prefix.state = best_state(found, length);
  prefix.forced_end = std::min(found.forced_end, length);
  prefix.last_use = ++uses_;
  prefix.source = sequence;
  for (const int32_t block : blocks) full_.share(block);
  retain_window(found, prefix);
  return next_sequence_++;
}

uint64_t BlockPool::attach(uint64_t prefix, int64_t length) {
  PrefixBlocks& found = find_prefix(prefix);
  require_length(prefix, found, length);
  const int64_t held = has_full_layers() ? blocks_for(length) : 0;
  const uint64_t created =
      create_with(std::span(found.blocks).first(static_cast<size_t>(held)),
                  std::span(found.history).first(static_cast<size_t>(length)), found.adapter);
  Sequence& target = find(created);
  if (found.state.length <= length) target.state = states_.share(found.state);
  attach_window(target, found);
  target.forced_end = std::min(found.forced_end, length);
  found.last_use = ++uses_;
  return created;
}

int64_t BlockPool::resumed_length(uint64_t prefix, int64_t length) const {
  const PrefixBlocks& found = this->prefix(prefix);
  require_length(prefix, found, length);
  if (has_states()) return found.state.length <= length ? found.state.length : 0;
  return has_windows() ? best_window(found.window_blocks, found.window_points, length) : length;
}

int64_t BlockPool::computed_length(uint64_t sequence) const {
  const Sequence& found = look_up(sequence);
  if (found.slot < 0) return restored_of(sequence, found).length;
  const int64_t full = full_length(found);
  if (has_states()) return std::min(full, found.state.length);
  return has_windows() ? std::min(full, found.window_length) : full;
}

void BlockPool::prepare_again(uint64_t sequence, int64_t count) {
  Sequence& found = find(sequence);
  const int64_t end = computed_length(sequence) + count;
  if (has_windows()) grow_window(found, end);
  while (has_full_layers() && std::ssize(found.blocks) < blocks_for(end)) {
    const int32_t block = take_full();
    set_blocks(found, std::ssize(found.blocks) + 1);
    found.blocks.back() = block;
  }
}

void BlockPool::set_computed_length(uint64_t sequence, int64_t length) {
  Sequence& found = find(sequence);
  if (found.lost_from >= 0) found.lost_from = std::max(found.lost_from, length);
  if (found.lost_from >= found.length) found.lost_from = -1;
  if (has_states()) found.state.length = length;
  if (!has_windows()) return;
  found.window_length = length;
  move_window(found, length);
}

void BlockPool::give_up(uint64_t sequence) {
  Sequence& found = find(sequence);
  if (found.lags) {
    throw Error(ErrorKind::kInvalidArgument,
                "some layers have fewer positions of sequence " + std::to_string(sequence) +
                    " than others, so they cannot be computed again in one pass; expected all "
                    "layers to have its tokens, or truncate() to those that all have");
  }
  if (found.slot < 0) return;
  std::vector<int32_t> apart(found.history.begin(), found.history.end());
  drop_states(found);
  drop_window(found);
  for (const int32_t block : found.blocks) full_.drop(block);
  found.apart = std::move(apart);
  slots_.give_back(std::exchange(found.slot, -1));
  set_tables(found);
  found.first_needed = 0;
  found.last_count = 0;
  found.window_length = has_windows() ? 0 : found.length;
  found.lost_from = found.length > 0 ? 0 : -1;
}

void BlockPool::take_place(uint64_t sequence) {
  Sequence& found = find(sequence);
  if (found.slot >= 0) return;
  require_slot();
  const Restored restored = restored_of(sequence, found);
  found.slot = slots_.take();
  std::ranges::copy(found.history, slots_.history(found.slot));
  found.apart = {};
  set_tables(found);
  if (restored.prefix != nullptr) restore(found, restored);
}

// Makes tables of no blocks, where the sequence stands now.
void BlockPool::set_tables(Sequence& sequence) {
  set_blocks(sequence, 0);
  set_window_blocks(sequence, 0);
  set_length(sequence, sequence.length);
}

void BlockPool::release_prefix(uint64_t prefix) {
  for (const int32_t block : this->prefix(prefix).blocks) full_.drop(block);
  const auto found = prefixes_.find(prefix);
  states_.drop(found->second.state);
  drop_window(found->second);
  prefixes_.erase(found);
}

const PrefixBlocks& BlockPool::prefix(uint64_t prefix) const {
  const auto found = prefixes_.find(prefix);
  if (found == prefixes_.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                "prefix " + std::to_string(prefix) + " does not exist or was released");
  }
  return found->second;
}

const SequenceBlocks& BlockPool::get(uint64_t sequence) const { return look_up(sequence); }

const BlockPool::Sequence& BlockPool::look_up(uint64_t sequence) const {
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " does not exist or was released");
  }
  return found->second;
}

void BlockPool::prepare(uint64_t sequence, int64_t count) {
  Sequence& found = find(sequence);
  found.last_use = ++uses_;
  if (count <= 0) return;
  if (found.length + count > sizes_.max_context) {
    throw Error(ErrorKind::kInternal, "sequence " + std::to_string(sequence) +
                                          " would outgrow its context of " +
                                          std::to_string(sizes_.max_context));
  }
  if (has_windows()) grow_window(found, found.length + count);
  if (!has_full_layers()) return;
  if (is_partial(found) && references(found.blocks.back()) > 1) own_last_block(found);
  while (std::ssize(found.blocks) < blocks_for(found.length + count)) {
    const int32_t block = take_full();
    set_blocks(found, std::ssize(found.blocks) + 1);
    found.blocks.back() = block;
  }
}

void BlockPool::append(uint64_t sequence, const int32_t* tokens, int64_t count) {
  Sequence& found = find(sequence);
  const auto before = static_cast<size_t>(found.length);
  found.step_begin = found.length;
  set_length(found, found.length + count);
  found.window_length = found.length;
  std::copy_n(tokens, count, found.history.subspan(before).begin());
}

void BlockPool::put(uint64_t sequence, int64_t position, int32_t token) {
  Sequence& found = find(sequence);
  set_length(found, position + 1);
  found.history.back() = token;
}

int32_t BlockPool::take_full() {
  const int32_t block = full_.take();
  if (clear_block_) clear_block_(/*windowed=*/false, block);
  return block;
}

int32_t BlockPool::take_block(int32_t copied) {
  return take_copy(full_, take_full(), copied, copy_block_);
}

// Copies into a block that was just taken, which goes back where the copy fails.
int32_t BlockPool::take_copy(BlockStore& store, int32_t own, int32_t copied,
                             const std::function<void(int32_t, int32_t)>& copy) {
  if (copied == kNoBlock) return own;
  try {
    copy(copied, own);
  } catch (...) {
    store.drop(own);
    throw;
  }
  return own;
}

void BlockPool::replace_blocks(uint64_t sequence, int64_t first, std::span<const int32_t> blocks) {
  Sequence& found = find(sequence);
  for (const int32_t block : found.blocks.subspan(static_cast<size_t>(first))) full_.drop(block);
  set_blocks(found, first + std::ssize(blocks));
  std::ranges::copy(blocks, found.blocks.begin() + first);
}

void BlockPool::trim(uint64_t sequence) {
  Sequence& found = find(sequence);
  const int64_t count = blocks_for(found.length);
  if (has_full_layers()) {
    for (const int32_t block : found.blocks.subspan(static_cast<size_t>(count))) full_.drop(block);
    set_blocks(found, count);
  }
  trim_window(found, count);
}

void BlockPool::require_slot() const {
  if (slots_.num_taken() < slots_.num_slots()) return;
  throw Error(ErrorKind::kOutOfMemory,
              std::to_string(slots_.num_slots()) +
                  " sequences are live, as many as max_sequences allows; release one or load the "
                  "engine with more max_sequences");
}

void BlockPool::set_blocks(Sequence& sequence, int64_t count) {
  if (sequence.slot < 0) return void(sequence.blocks = {});
  sequence.blocks = {slots_.table(sequence.slot), static_cast<size_t>(count)};
}

void BlockPool::set_length(Sequence& sequence, int64_t length) {
  sequence.length = length;
  int32_t* const history =
      sequence.slot < 0 ? sequence.apart.data() : slots_.history(sequence.slot);
  sequence.history = {history, static_cast<size_t>(length)};
}

// Its last block is shared, and will be written.
void BlockPool::own_last_block(Sequence& sequence) {
  const int32_t own = take_copy(full_, take_full(), sequence.blocks.back(), copy_block_);
  full_.drop(sequence.blocks.back());
  sequence.blocks.back() = own;
}

BlockPool::Tally::Tally(const BlockPool& pool) : pool_(pool) { ++pool.last_tally_; }

bool BlockPool::Tally::add(uint64_t sequence, int64_t count) {
  const Sequence& found = pool_.look_up(sequence);
  if (found.tally == pool_.last_tally_) return false;
  found.tally = pool_.last_tally_;
  if (count <= 0) return true;
  if (pool_.has_windows()) add_window(found, count);
  if (!pool_.has_full_layers()) return true;
  std::span<const int32_t> held = found.blocks;
  bool is_whole = found.lost_from < 0;
  if (found.slot < 0) {
    const Restored restored = pool_.restored_of(sequence, found);
    if (restored.prefix != nullptr) {
      held = std::span(restored.prefix->blocks)
                 .first(static_cast<size_t>(pool_.blocks_for(restored.length)));
      is_whole = restored.length == found.length;
    }
  }
  blocks_ += pool_.blocks_for(found.length + count) - std::ssize(held);
  const bool may_copy = pool_.is_partial(found) && is_whole;
  // A prefix goes on holding what is restored of it.
  const bool is_restored = found.slot < 0;
  if (may_copy && (is_restored || pool_.full_.makes_copy(pool_.last_tally_, held.back()))) {
    ++blocks_;
  }
  return true;
}

}  // namespace vitrine::kv
