// SPDX-License-Identifier: Apache-2.0
#include "kv/branch_tables.h"

#include <algorithm>

namespace vitrine::kv {

BranchTables::BranchTables(BlockPool& pool, int64_t branches)
    : pool_(pool), entries_(static_cast<size_t>(pool.table_entries())) {
  branches_.reserve(static_cast<size_t>(branches));
  tables_.resize(static_cast<size_t>(branches) * entries_);
}

int32_t BranchTables::add(uint64_t sequence, int64_t past, int64_t end) {
  const SequenceBlocks& own = pool_.get(sequence);
  const auto branch = static_cast<int32_t>(branches_.size());
  const int64_t first = past / pool_.block_size();
  branches_.push_back({sequence, first, first, first});
  const bool is_partial = past % pool_.block_size() != 0;
  // One table: what stands before is the sequence's, the rest is taken.
  const auto fill = [&](std::span<int32_t> table, std::span<const int32_t> blocks, int64_t& taken,
                        const auto& take) {
    std::ranges::copy(blocks.first(static_cast<size_t>(first)), table.begin());
    for (int64_t i = first; i < first + blocks_needed(pool_, past, end); ++i) {
      const auto at = static_cast<size_t>(i);
      table[at] = take(is_partial && i == first ? blocks[at] : BlockPool::kNoBlock);
      ++taken;
    }
  };
  if (pool_.has_full_layers()) {
    fill(full_table(branch), own.blocks, branches_.back().end,
         [&](int32_t copied) { return pool_.take_block(copied); });
  }
  if (pool_.has_windows()) {
    fill(window_table(branch), own.window_blocks, branches_.back().window_end,
         [&](int32_t copied) { return pool_.take_window_block(sequence, copied); });
  }
  return branch;
}

void BranchTables::adopt(int32_t branch) {
  Branch& adopted = branches_[static_cast<size_t>(branch)];
  const auto part = [&](std::span<int32_t> table, int64_t end) {
    return table.subspan(static_cast<size_t>(adopted.first),
                         static_cast<size_t>(end - adopted.first));
  };
  if (pool_.has_full_layers()) {
    pool_.replace_blocks(adopted.sequence, adopted.first, part(full_table(branch), adopted.end));
  }
  if (pool_.has_windows()) {
    pool_.replace_window_blocks(adopted.sequence, adopted.first,
                                part(window_table(branch), adopted.window_end));
  }
  adopted.end = adopted.window_end = adopted.first;
}

void BranchTables::clear() {
  for (size_t i = 0; i < branches_.size(); ++i) {
    const auto branch = static_cast<int32_t>(i);
    for (int64_t at = branches_[i].first; at < branches_[i].end; ++at) {
      pool_.give_back(full_table(branch)[static_cast<size_t>(at)]);
    }
    for (int64_t at = branches_[i].first; at < branches_[i].window_end; ++at) {
      pool_.give_back_window_block(window_table(branch)[static_cast<size_t>(at)]);
    }
  }
  branches_.clear();
}

}  // namespace vitrine::kv
