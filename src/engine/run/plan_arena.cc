// SPDX-License-Identifier: Apache-2.0
#include "engine/run/plan_arena.h"

#include <algorithm>

namespace vitrine::engine {

void* PlanArena::allocate(size_t bytes) {
  constexpr size_t kAlignment = 64;
  constexpr size_t kChunk = size_t{1} << 20;
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (chunks_.empty() || used_ + rounded > chunks_.back().size()) {
    chunks_.emplace_back(std::max(rounded, kChunk), "the plan's intermediates");
    used_ = 0;
  }
  void* memory = chunks_.back().data() + used_;
  used_ += rounded;
  num_bytes_ += rounded;
  return memory;
}

}  // namespace vitrine::engine
