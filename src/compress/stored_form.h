// SPDX-License-Identifier: Apache-2.0
// Private to the room: the tensors in which the result holds a quantized matrix.
#pragma once

#include <span>
#include <vector>

#include "plan.h"

namespace vitrine::compress {

/// Values as they stand on disk in F32, F16 or BF16, rounded to nearest.
std::vector<std::byte> narrow(std::span<const float> values, DType dtype);
/// Columns that share a scale in the result; 0: all of a row.
int stored_group_size(const QuantMethod& method, int group_size);
/// compressed-tensors' name of the layout: "pack-quantized" or "float-quantized".
const char* stored_format(const QuantMethod& method);

void declare_matrix(SafetensorsWriter& writer, const PlannedTensor& planned, int group_size);
/// The next rows of a matrix: a multiple of 8, unless they are its last.
void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                const QuantizedMatrix& rows);
/// What stands once for a matrix.
void write_shape(SafetensorsWriter& writer, const PlannedTensor& planned);
/// Bytes of all tensors of the matrix.
uint64_t matrix_bytes(const PlannedTensor& planned, int group_size);

}  // namespace vitrine::compress
