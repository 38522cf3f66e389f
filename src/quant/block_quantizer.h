// SPDX-License-Identifier: Apache-2.0
// How weights become the blocks of GGUF files: a block format's file registers it beside the
// format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::quant {

/// Makes blocks of one type.
struct BlockQuantizer {
  std::string_view name;   ///< as llama-quantize has it, in small letters: "q8_0"
  uint32_t ggml_type = 0;  ///< the BlockFormat's
  /// Makes `num_blocks` blocks. `importance` has how much each value's squared error counts, one
  /// for each value; null: by the values themselves. All are finite.
  void (*quantize)(const float* values, int64_t num_blocks, const float* importance,
                   std::byte* out) = nullptr;
};

/// A format's file holds a static object of this type.
class BlockQuantizerRegistration {
 public:
  explicit BlockQuantizerRegistration(const BlockQuantizer& quantizer);
};

/// Returns the one of that name, or null.
const BlockQuantizer* find_block_quantizer(std::string_view name);
/// Returns all, in order of name.
std::vector<BlockQuantizer> block_quantizers();

}  // namespace vitrine::quant
