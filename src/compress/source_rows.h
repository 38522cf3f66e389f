// SPDX-License-Identifier: Apache-2.0
// Private to the room: the rows of a tensor of the source.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "folds.h"
#include "plan.h"

namespace vitrine::compress {

/// Reads floats block by block, and a matrix of 8-bit floats whole, with its scales, or where these
/// are of no 128 columns row by row; the rows of a vector are its numbers. The checkpoint and the
/// plan outlive it.
class SourceRows {
 public:
  /// Throws what Checkpoint::read_quantized throws. `fold` may be null, and outlives it.
  SourceRows(const Checkpoint& checkpoint, const PlannedTensor& planned,
             const Fold* fold = nullptr);
  /// Rows [row, row + count) in the planned dtype, until the next call: 8-bit floats times their
  /// scales in float32, rounded once; folded ones times their factors, rounded once more. Throws
  /// what Checkpoint::read throws.
  std::span<const std::byte> read(int64_t row, int64_t count);
  /// Reads rows as read() does, and widens them.
  std::vector<float> read_floats(int64_t row, int64_t count);
  /// Returns numbers in a row.
  int64_t columns() const;

 private:
  std::span<const std::byte> fold_rows(int64_t row, int64_t count);

  const Checkpoint& checkpoint_;
  const PlannedTensor& planned_;
  const Fold* fold_;
  std::optional<QuantizedMatrix> floats8_;
  std::optional<QuantizedTensors> as_floats_;  // 8-bit floats that no kernel multiplies as such
  std::vector<std::byte> rows_;
};

}  // namespace vitrine::compress
