// SPDX-License-Identifier: Apache-2.0
// The scales of whole NVFP4 matrices, which GGUF files keep in tensors beside them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "file_io.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Maps a matrix's name in the file to what its values are multiplied by: one number, or one for
/// each expert of a stack.
using Multipliers = std::map<std::string, std::vector<float>, std::less<>>;

/// Takes out of `tensors`, which have the names of their files, `NAME.scale` and `NAME.input_scale`
/// of every `NAME.weight` in NVFP4, and returns the former's values. The latter are scales for
/// activations of four bits, which are not what is multiplied here. Throws kBadFile for another
/// dtype or shape and for a number that is not finite, kIo.
Multipliers take_multipliers(const std::vector<InputFile>& files, std::vector<TensorInfo>& tensors);

}  // namespace vitrine::checkpoint
