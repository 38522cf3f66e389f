// SPDX-License-Identifier: Apache-2.0
// Private to the room: a folder's weights, written as they are read.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "folds.h"
#include "plan.h"

namespace vitrine::compress {

using BeforeBlock = std::function<void()>;

/// Writes a folder's weights block by block.
class WeightWriter {
 public:
  WeightWriter(const Checkpoint& checkpoint, SafetensorsWriter& writer, const Folds& folds,
               const BeforeBlock& before_block)
      : checkpoint_(checkpoint), writer_(writer), folds_(folds), before_block_(before_block) {}

  /// Quantizes a matrix in blocks of rows (a row's groups are its own, so blocks change nothing).
  /// `largest` is what QuantMethod::quantize_part is given.
  QuantizedTensorReport quantize(const PlannedTensor& planned, float largest);
  /// Returns the largest |weight| of a matrix.
  float largest(const PlannedTensor& planned);
  void copy(const PlannedTensor& planned);

 private:
  template <typename Visit>
  void for_each_block(const PlannedTensor& planned, Visit visit);
  QuantizedMatrix quantize_rows(const PlannedTensor& planned, int64_t row, int64_t count,
                                std::span<const float> weights, float largest) const;

  const Checkpoint& checkpoint_;
  SafetensorsWriter& writer_;
  const Folds& folds_;
  const BeforeBlock& before_block_;
};

}  // namespace vitrine::compress
