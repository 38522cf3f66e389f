// SPDX-License-Identifier: Apache-2.0
// Private to the room: 3-D tensors that hold all experts of a layer, seen as one tensor per expert.
#pragma once

#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Replaces each fused expert tensor by its virtual per-expert tensors; see TensorInfo. `paths` are
/// the files, for messages. Throws kBadFile for a fused tensor of an impossible shape.
std::vector<TensorInfo> split_fused_experts(std::vector<TensorInfo> tensors,
                                            const std::vector<std::string>& paths);

}  // namespace vitrine::checkpoint
