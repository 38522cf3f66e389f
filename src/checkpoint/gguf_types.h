// SPDX-License-Identifier: Apache-2.0
// The types of a GGUF file's tensors, by their numbers.
#pragma once

#include <cstdint>
#include <string>

#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Sets a tensor's dtype, block_format and both sizes from the type's number and its shape. Throws
/// kUnsupported for a type that exists elsewhere, kBadFile for another number, for a shape that
/// overflows, and for rows that are no whole blocks; `path` is the file's.
void set_tensor_type(const std::string& path, TensorInfo& info, uint32_t type);

}  // namespace vitrine::checkpoint
