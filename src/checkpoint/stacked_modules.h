// SPDX-License-Identifier: Apache-2.0
// Private to the room: 3-D tensors that hold a layer's experts in quantized form, seen as those of
// one module per expert. The layouts (module_layout.h) read the modules as any other.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "file_io.h"
#include "quantization_config.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// A folder's tensors, and what is known of the stacks among them.
struct StackedModules {
  std::vector<TensorInfo> tensors;
  /// Holds the columns of an expert's matrices, by their stack of numbers, where a tensor says
  /// them.
  std::unordered_map<std::string, int64_t> columns;
};

/// Replaces each stack of quantized experts by the tensors of one module per expert, which are
/// parts of the same file: `experts.gate_up_proj` of 8-bit floats by `experts.0.gate_proj.weight`
/// and so on. What stands beside it may follow it with '_' or with '.weight_': `_scale`, `_packed`,
/// `.weight_scale`. `config`: null without one. Throws kBadFile, kUnsupported, kIo.
StackedModules split_stacked_modules(std::vector<TensorInfo> tensors,
                                     const QuantizationConfig* config,
                                     std::span<const InputFile> files);

/// Returns what the config says of a module, or of the stack that its numbers are a part of
/// (`fused_from`; empty: of none). Throws as QuantizationConfig::find.
std::optional<QuantizedModule> find_scheme(const QuantizationConfig& config,
                                           std::string_view module, std::string_view fused_from);

}  // namespace vitrine::checkpoint
