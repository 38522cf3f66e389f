// SPDX-License-Identifier: Apache-2.0
#include "kv/block_pool.h"

#include <utility>

namespace vitrine::kv {

BlockPool::BlockPool(int64_t num_blocks, int64_t block_size, int64_t max_context,
                     std::function<void(int32_t, int32_t)> copy_block)
    : block_size_(block_size),
      max_context_(max_context),
      copy_block_(std::move(copy_block)),
      references_(static_cast<size_t>(num_blocks), 0) {
  free_.reserve(static_cast<size_t>(num_blocks));
  for (int64_t block = num_blocks - 1; block >= 0; --block) {
    free_.push_back(static_cast<int32_t>(block));
  }
}

uint64_t BlockPool::create(int32_t adapter) {
  SequenceBlocks blocks;
  blocks.adapter = adapter;
  blocks.blocks.reserve(static_cast<size_t>(blocks_for(max_context_)) + 1);
  blocks.history.reserve(static_cast<size_t>(max_context_));
  const uint64_t sequence = next_sequence_++;
  sequences_.emplace(sequence, std::move(blocks));
  return sequence;
}

uint64_t BlockPool::fork(uint64_t sequence) {
  const SequenceBlocks& source = get(sequence);
  const bool partial = source.length % block_size_ != 0;
  if (partial && free_.empty()) {
    throw Error(ErrorKind::kOutOfMemory,
                "no KV block is free to fork sequence " + std::to_string(sequence) +
                    "; release a sequence or load the engine with more max_sequences");
  }
  const uint64_t copy = create(source.adapter);
  SequenceBlocks& target = find(copy);
  target.length = source.length;
  target.history.assign(source.history.begin(), source.history.end());
  for (int32_t block : source.blocks) {
    target.blocks.push_back(block);
    ++references_[static_cast<size_t>(block)];
  }
  if (partial) {
    const int32_t own = take();
    copy_block_(target.blocks.back(), own);
    drop(target.blocks.back());
    target.blocks.back() = own;
  }
  return copy;
}

void BlockPool::truncate(uint64_t sequence, int64_t length) {
  SequenceBlocks& blocks = find(sequence);
  if (length < 0 || length > blocks.length) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " cannot be truncated to " +
                    std::to_string(length) + "; expected 0 to " + std::to_string(blocks.length));
  }
  while (static_cast<int64_t>(blocks.blocks.size()) > blocks_for(length)) {
    drop(blocks.blocks.back());
    blocks.blocks.pop_back();
  }
  blocks.length = length;
  blocks.history.resize(static_cast<size_t>(length));
}

void BlockPool::release(uint64_t sequence) {
  for (int32_t block : find(sequence).blocks) drop(block);
  sequences_.erase(sequence);
}

const SequenceBlocks& BlockPool::get(uint64_t sequence) const {
  auto found = sequences_.find(sequence);
  if (found == sequences_.end()) {
    throw Error(ErrorKind::kInvalidArgument,
                "sequence " + std::to_string(sequence) + " does not exist or was released");
  }
  return found->second;
}

SequenceBlocks& BlockPool::find(uint64_t sequence) {
  return const_cast<SequenceBlocks&>(std::as_const(*this).get(sequence));
}

int64_t BlockPool::blocks_needed(uint64_t sequence, int64_t count, int32_t sharers) const {
  const SequenceBlocks& blocks = get(sequence);
  int64_t needed = blocks_for(blocks.length + count) - static_cast<int64_t>(blocks.blocks.size());
  const bool partial = blocks.length % block_size_ != 0;
  if (count > 0 && partial && references(blocks.blocks.back()) - sharers > 1) ++needed;
  return needed;
}

bool BlockPool::share_last_block(uint64_t one, uint64_t other) const {
  const SequenceBlocks &a = get(one), &b = get(other);
  return a.length % block_size_ != 0 && b.length % block_size_ != 0 &&
         a.blocks.back() == b.blocks.back();
}

void BlockPool::prepare(uint64_t sequence, int64_t count) {
  SequenceBlocks& blocks = find(sequence);
  if (count <= 0) return;
  if (blocks.length % block_size_ != 0 && references(blocks.blocks.back()) > 1) {
    const int32_t own = take();
    copy_block_(blocks.blocks.back(), own);
    drop(blocks.blocks.back());
    blocks.blocks.back() = own;
  }
  while (static_cast<int64_t>(blocks.blocks.size()) < blocks_for(blocks.length + count)) {
    blocks.blocks.push_back(take());
  }
}

void BlockPool::append(uint64_t sequence, const int32_t* tokens, int64_t count) {
  SequenceBlocks& blocks = find(sequence);
  blocks.length += count;
  blocks.history.insert(blocks.history.end(), tokens, tokens + count);
}

int32_t BlockPool::take() {
  if (free_.empty()) throw Error(ErrorKind::kOutOfMemory, "no KV block is free");
  const int32_t block = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(block)] = 1;
  return block;
}

void BlockPool::drop(int32_t block) {
  if (--references_[static_cast<size_t>(block)] == 0) free_.push_back(block);
}

}  // namespace vitrine::kv
