// SPDX-License-Identifier: Apache-2.0
// Keys and values of heads' own layers.
#pragma once

#include "checkpoint/model_config.h"
#include "draft_heads/draft_tree.h"
#include "draft_heads/head_memory.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::draft_heads {

/// One text's keys and values in the heads' layers, float32: [layer, key or value]. Behind the
/// text's blocks are those of the branches of a tree, which has two levels under way.
class EagleCache {
 public:
  static constexpr int32_t kBlock = kernels::kKvLanes;
  static constexpr int32_t kBranches = 2 * DraftTree::kWidth;
  /// Blocks of a branch: the first, which begins with the end of the text, and one for more of the
  /// branch's own positions.
  static constexpr int32_t kBranchBlocks = 2;
  static_assert(DraftTree::kMaxDepth <= kBlock);

  /// `slots`: positions, up to a whole block.
  EagleCache(const ModelConfig& layer, int64_t slots);

  /// Returns bytes() of one that is made of these.
  static uint64_t bytes_of(const ModelConfig& layer, int64_t slots);
  kernels::KvView view(size_t layer);
  uint64_t bytes() const { return floats_.bytes(); }
  int32_t branch_block(int32_t branch, int32_t index) const {
    return static_cast<int32_t>(blocks_) + branch * kBranchBlocks + index;
  }
  void copy_block(int32_t from, int32_t to);

 private:
  static int64_t part_floats(const ModelConfig& layer, int64_t slots);

  int32_t kv_heads_, head_dim_;
  int64_t layers_;
  int64_t blocks_;  // of the text
  int64_t part_;    // floats of a layer's keys
  AlignedFloats floats_;
};

}  // namespace vitrine::draft_heads
