// SPDX-License-Identifier: Apache-2.0
// Private to the room: which tensors of a checkpoint are quantized, and why the others are not.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/model_config.h"
#include "vitrine/compress.h"
#include "vitrine/quant.h"

namespace vitrine::compress {

inline constexpr std::string_view kWeight = ".weight";  ///< behind a module's name

/// What becomes of one tensor of the source.
struct PlannedTensor {
  const TensorInfo* source = nullptr;   ///< in Checkpoint::tensors()
  std::string module;                   ///< quantized: the module's name in the result
  const QuantMethod* method = nullptr;  ///< null: copied
  std::string reason;                   ///< copied: why
  /// The dtype of the result's floats, a matrix's or its scales: the source's own, and where that
  /// is an 8-bit float, which is read with its scales, the embedding's.
  DType dtype = DType::kF32;
  /// Quantized: columns that share a scale; 0: all of a row.
  int group_size = 0;
  /// Quantized by QuantMethod::quantize_part: the number of those matrices that share what stands
  /// once for a matrix, since some
  /// engine keeps them as one (queries, keys and values; a gate and its up).
  int family = -1;
  bool is_widened() const { return source->dtype == DType::kF8E4M3; }
};

/// What two mixtures of the same bits lose (mean KL): with one width for all experts of a layer in
/// each of its parts, and with one for each expert. The lesser one was taken.
struct WidthRecipes {
  double by_layer = 0, by_expert = 0;
};

struct QuantizePlan {
  std::vector<PlannedTensor> tensors;
  std::vector<std::string> ignored_modules;  ///< linear modules that stay float, in order of name
  const QuantMethod* head_method = nullptr;  ///< null: the head stays as it is
  std::vector<std::string> folded;      ///< once they are written: tensors that a method multiplied
  std::optional<WidthRecipes> recipes;  ///< of "mixed:BITS:experts", once widths are chosen
  bool unties_head = false;  ///< the head was the embedding and becomes a matrix of its own
};

/// Returns whether a tensor is part of a matrix of 8-bit floats: its scale, or its inputs'.
bool belongs_to_float8(const Checkpoint& checkpoint, std::string_view name);

/// Returns how many threads work where `asked` are wanted; 0: all.
int thread_count(int asked);

/// Throws kInvalidArgument for a source of quantized integers, which would lose again; 8-bit floats
/// are what their publishers have.
void refuse_integers(const Checkpoint& checkpoint);

/// Throws what parse_model_config and find_quant_method throw, and kInvalidArgument where nothing
/// can be quantized.
QuantizePlan plan_quantization(const Checkpoint& checkpoint, const QuantizeOptions& options);

}  // namespace vitrine::compress
