// SPDX-License-Identifier: Apache-2.0
// Private to the room: how writers name what stands beside a 3-D tensor of quantized experts.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "fused_experts.h"

namespace vitrine::checkpoint {

/// What a tensor is to its stack.
enum class StackRole : uint8_t {
  kNumbers,      ///< [experts, rows, words or columns]
  kScales,       ///< of groups, rows or blocks, or one a matrix
  kZeroPoints,   ///< as the scales, or packed along the rows
  kFactor,       ///< one number a matrix
  kShape,        ///< rows and columns
  kOrder,        ///< the group of each column
  kActivations,  ///< says nothing of the weights
};

struct StackPart {
  std::string_view ending;  ///< behind "experts.gate_up_proj"
  std::string_view suffix;  ///< behind "experts.0.gate_proj"
  StackRole role;
};
/// A tensor's place in a stack.
struct StackName {
  std::string stem;  ///< "model.layers.0.mlp.experts.gate_up_proj"
  const FusedLayout* layout = nullptr;
  const StackPart* part = nullptr;
};

/// Returns nothing for a tensor that no stack of experts has.
std::optional<StackName> stack_name(std::string_view name);

}  // namespace vitrine::checkpoint
