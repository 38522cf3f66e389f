// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/eagle_cache.h"

#include <algorithm>

#include "ops/plan.h"

namespace vitrine::draft_heads {

EagleCache::EagleCache(const ModelConfig& layer, int64_t slots)
    : kv_heads_(static_cast<int32_t>(layer.num_kv_heads)),
      head_dim_(static_cast<int32_t>(layer.head_dim)),
      layers_(layer.num_layers),
      blocks_(ops::divide_up(slots, kBlock)),
      part_(part_floats(layer, slots)),
      floats_(2 * layer.num_layers * part_) {}

int64_t EagleCache::part_floats(const ModelConfig& layer, int64_t slots) {
  const int64_t blocks = ops::divide_up(slots, kBlock) + kBranches * kBranchBlocks;
  return blocks * kBlock * layer.num_kv_heads * layer.head_dim;
}

uint64_t EagleCache::bytes_of(const ModelConfig& layer, int64_t slots) {
  return AlignedFloats::bytes_of(2 * layer.num_layers * part_floats(layer, slots));
}

kernels::KvView EagleCache::view(size_t layer) {
  float* keys = floats_.data() + 2 * static_cast<int64_t>(layer) * part_;
  kernels::KvView view;
  view.keys = keys;
  view.values = keys + part_;
  view.kv_heads = kv_heads_;
  view.head_dim = head_dim_;
  view.block_size = kBlock;
  return view;
}

void EagleCache::copy_block(int32_t from, int32_t to) {
  const int64_t floats = int64_t{kBlock} * kv_heads_ * head_dim_;
  for (int64_t part = 0; part < 2 * layers_; ++part) {
    float* blocks = floats_.data() + part * part_;
    std::copy_n(blocks + from * floats, floats, blocks + to * floats);
  }
}

}  // namespace vitrine::draft_heads
