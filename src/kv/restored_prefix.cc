// SPDX-License-Identifier: Apache-2.0
// The block pool tells what a prefix is, and makes one again whose bytes come from elsewhere.
#include <algorithm>
#include <string>

#include "kv/block_pool.h"

namespace vitrine::kv {

namespace {

[[noreturn]] void refuse_shape(const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, "a prefix cannot be made again: " + what);
}

}  // namespace

PrefixShape BlockPool::shape(uint64_t prefix, int64_t first_block) const {
  const PrefixBlocks& found = this->prefix(prefix);
  PrefixShape shape;
  shape.history = found.history;
  shape.adapter = found.adapter;
  shape.first_block = std::min(first_block, std::ssize(found.blocks));
  for (const int32_t block : found.window_blocks) {
    shape.holds_window.push_back(block >= 0 ? 1 : 0);
  }
  for (const HeldState& point : found.window_points) shape.window_points.push_back(point.length);
  if (found.state.slot >= 0) shape.state_length = found.state.length;
  return shape;
}

void BlockPool::check_shape(const PrefixShape& shape, uint64_t parent) const {
  const int64_t length = shape.length();
  const int64_t held = has_full_layers() ? blocks_for(length) : 0;
  if (length > sizes_.max_context) refuse_shape("it is longer than max_context");
  if (shape.first_block < 0 || shape.first_block > held) refuse_shape("it has fewer blocks");
  if (shape.state_length < 0 || shape.state_length > length) refuse_shape("its state is longer");
  if (shape.state_length > 0 && !has_states()) refuse_shape("this model keeps no states");
  const auto windows = std::ssize(shape.holds_window);
  if (windows > (has_windows() ? blocks_for(length) : 0)) refuse_shape("it has other windows");
  for (const int64_t point : shape.window_points) {
    if (point < 0 || blocks_for(point) > windows) refuse_shape("it has other windows");
  }
  if (shape.first_block == 0) return;
  const PrefixBlocks& from = prefix(parent);
  const int64_t shared = shape.first_block * sizes_.block_size;
  if (from.adapter != shape.adapter || shared > std::min(from.length, length) ||
      !std::equal(from.history.begin(), from.history.begin() + shared, shape.history.begin())) {
    refuse_shape("it does not begin as the prefix whose blocks it shares");
  }
}

uint64_t BlockPool::restore(const PrefixShape& shape, uint64_t parent) {
  check_shape(shape, parent);
  const int64_t held = has_full_layers() ? blocks_for(shape.length()) : 0;
  if (num_free() < held - shape.first_block) {
    throw Error(ErrorKind::kOutOfMemory, "no KV block is free for a prefix that is made again");
  }
  PrefixBlocks made;
  made.length = shape.length();
  made.history = shape.history;
  made.adapter = shape.adapter;
  made.last_use = ++uses_;
  try {
    for (int64_t i = 0; i < held; ++i) {
      if (i < shape.first_block) {
        made.blocks.push_back(prefix(parent).blocks[static_cast<size_t>(i)]);
        full_.share(made.blocks.back());
      } else {
        made.blocks.push_back(full_.take());
      }
    }
    for (const uint8_t holds : shape.holds_window) {
      if (holds != 0) free_prefix_window();
      made.window_blocks.push_back(holds != 0 ? windowed_.take() : kNoBlock);
    }
    for (const int64_t point : shape.window_points) made.window_points.push_back({-1, point});
    if (shape.state_length > 0) {
      free_prefix_state();
      states_.own(made.state);
      made.state.length = shape.state_length;
    }
  } catch (...) {
    for (const int32_t block : made.blocks) full_.drop(block);
    drop_window(made);
    throw;
  }
  prefixes_.emplace(next_sequence_, std::move(made));
  return next_sequence_++;
}

}  // namespace vitrine::kv
