// SPDX-License-Identifier: Apache-2.0
// Private to the room: the rows of a matrix of the source.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "plan.h"

namespace vitrine::compress {

/// Reads floats block by block, and a matrix of 8-bit floats whole, with its scales. The checkpoint
/// and the plan outlive it.
class SourceRows {
 public:
  /// Throws what Checkpoint::read_quantized throws.
  SourceRows(const Checkpoint& checkpoint, const PlannedTensor& planned);
  /// Rows [row, row + count) in the planned dtype, until the next call: 8-bit floats times their
  /// scales in float32, rounded once. Throws what Checkpoint::read throws.
  std::span<const std::byte> read(int64_t row, int64_t count);

 private:
  const Checkpoint& checkpoint_;
  const PlannedTensor& planned_;
  std::optional<QuantizedMatrix> floats8_;
  std::vector<std::byte> rows_;
};

}  // namespace vitrine::compress
