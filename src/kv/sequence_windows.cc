// SPDX-License-Identifier: Apache-2.0
// The block pool's windows: the blocks of layers within a window, and what becomes of them where a
// sequence goes on and where positions go.
#include <algorithm>

#include "kernels/cpu/cpu_kernels.h"
#include "kv/block_pool.h"

namespace vitrine::kv {

namespace {

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A block below what is seen stays, so that dropping a few positions leaves enough.
int64_t kept_from(int64_t length, const PoolSizes& sizes) {
  const int64_t back = std::max<int64_t>(0, length - sizes.block_size);
  return first_window_block(back, sizes.window, sizes.block_size);
}

}  // namespace

// Attention's blocks begin at multiples of their length, whatever a block of the table has.
int64_t first_window_block(int64_t length, int64_t window, int64_t block_size) {
  const int64_t first = std::max<int64_t>(0, length - window + 1);
  return first / kernels::kAttentionBlock * kernels::kAttentionBlock / block_size;
}

int64_t most_window_blocks(int64_t tokens, int64_t window, int64_t block_size) {
  const int64_t unaligned =
      block_size % kernels::kAttentionBlock == 0 ? 0 : kernels::kAttentionBlock - 1;
  const int64_t below = block_size - 1 + unaligned + block_size;
  return divide_up(below + window - 1 + tokens, block_size);
}

int64_t step_window_blocks(int64_t tokens, int64_t block_size) { return tokens / block_size + 2; }

int64_t enough_window_blocks(const PoolSizes& sizes) {
  const auto most = [&](int64_t tokens) {
    return most_window_blocks(tokens, sizes.window, sizes.block_size);
  };
  // Each sequence may begin another block in the same step.
  return sizes.max_sequences * (most(1) + 1) +
         step_window_blocks(sizes.max_step_tokens, sizes.block_size) +
         (sizes.max_sequences + StateCheckpoints::kMost) * most(0);
}

bool BlockPool::holds_window(std::span<const int32_t> blocks, int64_t length) const {
  if (std::ssize(blocks) < blocks_for(length)) return false;
  for (int64_t i = first_seen(length); i < blocks_for(length); ++i) {
    if (blocks[static_cast<size_t>(i)] < 0) return false;
  }
  return true;
}

bool BlockPool::holds_for_checkpoint(const Sequence& sequence, int64_t index) const {
  return std::ranges::any_of(sequence.checkpoints.all(), [&](const HeldState& checkpoint) {
    return index >= first_seen(checkpoint.length) && index < blocks_for(checkpoint.length);
  });
}

// The largest number of positions up to `length` that can be gone on from.
int64_t BlockPool::best_window(std::span<const int32_t> blocks,
                               std::span<const HeldState> checkpoints, int64_t length) const {
  if (holds_window(blocks, length)) return length;
  int64_t best = 0;
  for (const HeldState& checkpoint : checkpoints) {
    if (checkpoint.length <= length && holds_window(blocks, checkpoint.length)) {
      best = std::max(best, checkpoint.length);
    }
  }
  return best;
}

// What is seen from `length` on, and the block below it where that is still there.
int64_t BlockPool::first_kept(std::span<const int32_t> blocks, int64_t length) const {
  int64_t first = first_seen(length);
  const int64_t lowest = kept_from(length, sizes_);
  while (first > lowest && blocks[static_cast<size_t>(first) - 1] >= 0) --first;
  return first;
}

void BlockPool::set_window_blocks(Sequence& sequence, int64_t count) {
  if (!has_windows()) return;
  if (sequence.slot < 0) return void(sequence.window_blocks = {});
  sequence.window_blocks = {slots_.table(sequence.slot) + table_stride_,
                            static_cast<size_t>(count)};
}

void BlockPool::grow_window(Sequence& sequence, int64_t end) {
  if (sequence.window_length % sizes_.block_size != 0) {
    const auto last = static_cast<size_t>(sequence.window_length / sizes_.block_size);
    if (windowed_.references(sequence.window_blocks[last]) > 1) own_last_window_block(sequence);
  }
  while (std::ssize(sequence.window_blocks) < blocks_for(end)) {
    const int32_t block = take_window_block(sequence);
    set_window_blocks(sequence, std::ssize(sequence.window_blocks) + 1);
    sequence.window_blocks.back() = block;
    windowed_.need(block);
  }
}

void BlockPool::own_last_window_block(Sequence& sequence) {
  int32_t& block =
      sequence.window_blocks[static_cast<size_t>(sequence.window_length / sizes_.block_size)];
  const int32_t own = take_copy(windowed_, take_window_block(sequence), block, copy_window_block_);
  windowed_.spare(block);
  windowed_.drop(block);
  block = own;
  windowed_.need(own);
}

void BlockPool::settle(uint64_t sequence, bool keeps) {
  if (!has_windows()) return;
  Sequence& found = find(sequence);
  if (found.lags) return move_window(found, whole_length(found));
  // Drafts are an answer's.
  const int64_t of_turn = keeps ? 1 : found.length - found.step_begin;
  if (ends_turn(found, found.step_begin, of_turn)) {
    const HeldState gone = found.checkpoints.add({-1, found.step_begin});
    drop_unheld(found, first_seen(gone.length), blocks_for(gone.length));
  }
  found.last_count = of_turn;
  move_window(found, keeps ? found.step_begin : found.length);
}

// No position before `length` is gone back to, but a checkpoint's.
void BlockPool::move_window(Sequence& sequence, int64_t length) {
  const int64_t first = std::min(kept_from(length, sizes_), std::ssize(sequence.window_blocks));
  for (int64_t begin = sequence.first_needed; begin < first; ++begin) {
    windowed_.spare(sequence.window_blocks[static_cast<size_t>(begin)]);
    sequence.first_needed = begin + 1;
    drop_unheld(sequence, begin, begin + 1);
  }
}

void BlockPool::drop_unheld(Sequence& sequence, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < std::min(end, sequence.first_needed); ++i) {
    int32_t& block = sequence.window_blocks[static_cast<size_t>(i)];
    if (block < 0 || holds_for_checkpoint(sequence, i)) continue;
    windowed_.drop(block);
    block = -1;
  }
}

void BlockPool::cut_window(Sequence& sequence, int64_t length) {
  if (!has_windows()) {
    sequence.window_length = length;
  } else if (length < sequence.window_length) {
    set_window(sequence, best_window(sequence.window_blocks, sequence.checkpoints.all(), length));
  }
}

void BlockPool::set_window(Sequence& sequence, int64_t length) {
  const std::span<int32_t> blocks = sequence.window_blocks;
  const auto needed = static_cast<size_t>(sequence.first_needed);
  for (const int32_t block : blocks.subspan(needed)) windowed_.spare(block);
  // Layers that lag go on further down.
  const int64_t first = first_kept(blocks, std::min(length, whole_length(sequence)));
  const int64_t count = blocks_for(length);
  for (int64_t i = first; i < count; ++i) windowed_.need(blocks[static_cast<size_t>(i)]);
  for (const int32_t block : blocks.subspan(static_cast<size_t>(count))) {
    if (block >= 0) windowed_.drop(block);
  }
  sequence.first_needed = first;
  sequence.window_length = length;
  set_window_blocks(sequence, count);
  drop_unheld(sequence, 0, first);
}

// A new sequence goes on with `length` of the positions that a table is of, and needs its blocks
// from `first` on.
void BlockPool::share_window(Sequence& sequence, std::span<const int32_t> blocks, int64_t length,
                             int64_t first) {
  sequence.window_length = length;
  if (!has_windows()) return;
  const int64_t count = blocks_for(length);
  set_window_blocks(sequence, count);
  std::ranges::copy(blocks.first(static_cast<size_t>(count)), sequence.window_blocks.begin());
  sequence.first_needed = first;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t block = sequence.window_blocks[static_cast<size_t>(i)];
    if (block >= 0) windowed_.share(block);
    if (i >= first) windowed_.need(block);
  }
  drop_unheld(sequence, 0, first);
}

void BlockPool::drop_window(Sequence& sequence) {
  for (int64_t i = 0; i < std::ssize(sequence.window_blocks); ++i) {
    const int32_t block = sequence.window_blocks[static_cast<size_t>(i)];
    if (i >= sequence.first_needed) windowed_.spare(block);
    if (block >= 0) windowed_.drop(block);
  }
}

void BlockPool::retain_window(const Sequence& sequence, PrefixBlocks& prefix) {
  if (!has_windows()) return;
  const std::span<const int32_t> blocks = sequence.window_blocks;
  const std::span<const HeldState> checkpoints = sequence.checkpoints.all();
  const int64_t length =
      best_window(blocks, checkpoints, std::min(prefix.length, sequence.window_length));
  for (const HeldState& checkpoint : checkpoints) {
    if (checkpoint.length < length) prefix.window_points.push_back(checkpoint);
  }
  prefix.window_points.push_back({-1, length});
  const int64_t first = first_kept(blocks, length);
  for (int64_t i = 0; i < blocks_for(length); ++i) {
    const int32_t block = blocks[static_cast<size_t>(i)];
    const bool is_kept = block >= 0 && (i >= first || holds_for_checkpoint(sequence, i));
    if (is_kept) windowed_.share(block);
    prefix.window_blocks.push_back(is_kept ? block : -1);
  }
}

void BlockPool::attach_window(Sequence& sequence, const PrefixBlocks& prefix) {
  const std::span<const int32_t> blocks = prefix.window_blocks;
  const int64_t length =
      has_windows() ? best_window(blocks, prefix.window_points, sequence.length) : sequence.length;
  for (const HeldState& point : prefix.window_points) {
    if (point.length > 0 && point.length < length) sequence.checkpoints.add(point);
  }
  share_window(sequence, blocks, length, has_windows() ? first_kept(blocks, length) : 0);
}

void BlockPool::drop_window(PrefixBlocks& prefix) {
  for (const int32_t block : prefix.window_blocks) {
    if (block >= 0) windowed_.drop(block);
  }
  prefix.window_blocks.clear();
  prefix.window_points.clear();
}

int64_t BlockPool::whole_length(const Sequence& sequence) const {
  if (!sequence.lags) return sequence.length;
  const auto first = layer_lengths_.begin() + sequence.slot * sizes_.layers;
  return std::min(sequence.length, *std::min_element(first, first + sizes_.layers));
}

void BlockPool::Tally::add_window(const Sequence& sequence, int64_t count) {
  const int64_t length = sequence.length, end = pool_.blocks_for(length + count);
  const std::span<const int32_t> blocks = sequence.window_blocks;
  if (sequence.window_length == length) {
    step_window_blocks_ += end - std::ssize(blocks);
    const bool is_partial = length % pool_.sizes_.block_size != 0;
    if (is_partial && pool_.windowed_.makes_copy(pool_.last_tally_, blocks.back())) {
      ++step_window_blocks_;
    }
    return;
  }
  runs_again_ = true;
  step_window_blocks_ += end - pool_.blocks_for(length);
  // On the way it needs as many as any sequence.
  const PoolSizes& sizes = pool_.sizes_;
  again_window_blocks_ +=
      std::min(most_window_blocks(0, sizes.window, sizes.block_size), pool_.blocks_for(length));
  for (const int32_t block : blocks.subspan(static_cast<size_t>(sequence.first_needed))) {
    if (pool_.windowed_.needs(block) == 1) --again_window_blocks_;
  }
}

int64_t BlockPool::Tally::window_blocks() const {
  const PoolSizes& sizes = pool_.sizes_;
  const int64_t again =
      runs_again_ ? step_window_blocks(sizes.max_step_tokens, sizes.block_size) : 0;
  return std::max<int64_t>(0, again_window_blocks_ + std::max(step_window_blocks_, again));
}

int32_t BlockPool::take_window_block(uint64_t sequence, int32_t copied) {
  const int32_t block =
      take_copy(windowed_, take_window_block(find(sequence)), copied, copy_window_block_);
  windowed_.need(block);
  return block;
}

void BlockPool::give_back_window_block(int32_t block) {
  windowed_.spare(block);
  windowed_.drop(block);
}

void BlockPool::replace_window_blocks(uint64_t sequence, int64_t first,
                                      std::span<const int32_t> blocks) {
  Sequence& found = find(sequence);
  for (const int32_t block : found.window_blocks.subspan(static_cast<size_t>(first))) {
    give_back_window_block(block);
  }
  set_window_blocks(found, first + std::ssize(blocks));
  std::ranges::copy(blocks, found.window_blocks.begin() + first);
}

void BlockPool::trim_window(Sequence& sequence, int64_t count) {
  sequence.window_length = sequence.length;
  if (!has_windows()) return;
  for (const int32_t block : sequence.window_blocks.subspan(static_cast<size_t>(count))) {
    give_back_window_block(block);
  }
  set_window_blocks(sequence, count);
}

}  // namespace vitrine::kv
