// SPDX-License-Identifier: Apache-2.0
// Private to the room: reading tensors that a GGUF file stores in another form than they read in.
#pragma once

#include <span>

#include "file_io.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Returns true where the bytes in the file are not the tensor's own.
inline bool is_transformed(const TensorInfo& info) {
  return info.block_format != nullptr || info.interleaved_head_rows > 0;
}

/// Reads bytes of the tensor as it reads (`byte_offset` and the size lie within info.num_bytes).
/// Throws kIo.
void read_transformed(const InputFile& file, const TensorInfo& info, uint64_t byte_offset,
                      std::span<std::byte> out);

/// Reads whole rows of blocks as the file stores them, from `row_begin` on, in the order in which
/// the tensor reads. Throws kIo.
void read_block_rows(const InputFile& file, const TensorInfo& info, int64_t row_begin,
                     std::span<std::byte> out);

}  // namespace vitrine::checkpoint
