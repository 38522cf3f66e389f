// SPDX-License-Identifier: Apache-2.0
// Private to the room: the header of a safetensors file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "file_io.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// The most bytes of a header, as the reference implementation has it.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;

/// Reads and checks the header of a file: lengths, dtypes, shapes, offsets (they must cover the
/// data without a gap or an overlap). The tensors come in the order of their offsets; `file_offset`
/// is absolute. Throws kBadFile, kUnsupported for a dtype of the format that Vitrine lacks.
std::vector<TensorInfo> read_safetensors_header(const InputFile& file, int file_index);

/// Returns the product of the extents times the size of an element; nothing where it overflows or
/// an extent is negative.
std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape);

}  // namespace vitrine::checkpoint
