// SPDX-License-Identifier: Apache-2.0
// Private to the room: 3-D tensors that hold all experts of a layer, seen as one tensor per expert.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// How a fused tensor's name ends, and what stands for it before ".experts.{e}".
struct FusedLayout {
  std::string_view suffix;
  std::string_view parent;   ///< replaces the suffix
  bool gate_and_up;          ///< rows of the gate projection, then as many of the up projection
  bool has_numbers = false;  ///< the projections are w1, w3 and w2 (lfm2_moe)
};
/// Returns all of them; the first whose suffix fits holds.
std::span<const FusedLayout> fused_layouts();
/// Returns the module of an expert, "model.layers.0.mlp.experts.3.up_proj", of the name in the file
/// with or without ".weight". `half`: 0 is the gate, 1 is up, where the tensor holds both.
std::string expert_module(std::string_view fused, const FusedLayout& layout, int64_t expert,
                          int half);

/// Replaces each fused expert tensor by its virtual per-expert tensors; see TensorInfo. `paths` are
/// the files, for messages. Throws kBadFile for a fused tensor of an impossible shape.
std::vector<TensorInfo> split_fused_experts(std::vector<TensorInfo> tensors,
                                            const std::vector<std::string>& paths);

}  // namespace vitrine::checkpoint
