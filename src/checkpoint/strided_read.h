// SPDX-License-Identifier: Apache-2.0
// Private to the room: reading parts of fused tensors whose elements lie scattered.
#pragma once

#include <span>
#include <vector>

#include "file_io.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

inline bool is_strided(const TensorInfo& info) { return info.row_stride > 0; }

/// Reads bytes of the tensor as it reads (`byte_offset` and the size lie within info.num_bytes).
/// Throws kIo.
void read_strided(std::span<const InputFile> files, const TensorInfo& info, uint64_t byte_offset,
                  std::span<std::byte> out);

/// Reads whole rows as ggml stores blocks of MXFP4: a scale, then 16 bytes, each with the numbers j
/// and j + 16. Throws kIo.
void read_strided_blocks(std::span<const InputFile> files, const TensorInfo& info,
                         int64_t row_begin, std::span<std::byte> out);

}  // namespace vitrine::checkpoint
