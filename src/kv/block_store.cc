// SPDX-License-Identifier: Apache-2.0
#include "kv/block_store.h"

#include "vitrine/core.h"

namespace vitrine::kv {

BlockStore::BlockStore(int64_t blocks) : counts_(static_cast<size_t>(blocks)) {
  free_.reserve(static_cast<size_t>(blocks));
  for (int64_t block = blocks - 1; block >= 0; --block) {
    free_.push_back(static_cast<int32_t>(block));
  }
}

int32_t BlockStore::take() {
  if (free_.empty()) throw Error(ErrorKind::kOutOfMemory, "no KV block is free");
  const int32_t block = free_.back();
  free_.pop_back();
  of(block).holders = 1;
  return block;
}

void BlockStore::drop(int32_t block) {
  if (--of(block).holders == 0) free_.push_back(block);
}

void BlockStore::need(int32_t block) {
  if (of(block).needs++ == 0) ++num_needed_;
}

void BlockStore::spare(int32_t block) {
  if (--of(block).needs == 0) --num_needed_;
}

bool BlockStore::makes_copy(uint64_t tally, int32_t block) const {
  const Counts& counts = of(block);
  if (counts.tally != tally) {
    counts.tally = tally;
    counts.leavers = 0;
  }
  if (counts.holders - counts.leavers <= 1) return false;
  ++counts.leavers;
  return true;
}

}  // namespace vitrine::kv
