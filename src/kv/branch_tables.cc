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
  const std::span<const int32_t> blocks = pool_.get(sequence).blocks;
  const auto branch = static_cast<int32_t>(branches_.size());
  const int64_t first = past / pool_.block_size();
  const std::span<int32_t> table = of(branch);
  std::ranges::copy(blocks.first(static_cast<size_t>(first)), table.begin());
  branches_.push_back({sequence, first, first});
  const bool is_partial = past % pool_.block_size() != 0;
  for (int64_t i = first; i < first + blocks_needed(pool_, past, end); ++i) {
    const bool copies = is_partial && i == first;
    table[static_cast<size_t>(i)] =
        pool_.take_block(copies ? blocks[static_cast<size_t>(i)] : BlockPool::kNoBlock);
    ++branches_.back().end;
  }
  return branch;
}

void BranchTables::adopt(int32_t branch) {
  Branch& adopted = branches_[static_cast<size_t>(branch)];
  const std::span<const int32_t> table = of(branch);
  pool_.replace_blocks(adopted.sequence, adopted.first,
                       table.subspan(static_cast<size_t>(adopted.first),
                                     static_cast<size_t>(adopted.end - adopted.first)));
  adopted.end = adopted.first;
}

void BranchTables::clear() {
  for (size_t i = 0; i < branches_.size(); ++i) {
    const std::span<const int32_t> table = of(static_cast<int32_t>(i));
    for (int64_t at = branches_[i].first; at < branches_[i].end; ++at) {
      pool_.give_back(table[static_cast<size_t>(at)]);
    }
  }
  branches_.clear();
}

}  // namespace vitrine::kv
